"""Bugs of the tasks that were written for the attack of 2026-11-27, in several classes."""

from __future__ import annotations

from dataclasses import replace

from .bug import Bug

INPUTS: tuple[Bug, ...] = (
    Bug("ring_read_kernel", "head[i] % size", "head[0] % size", "uses one head for all rows"),
    Bug("ring_read_kernel", "head[i] % size", "9 % size", "uses the head of the task's own inputs"),
    Bug(
        "run_lengths_kernel",
        "n < counts[i] &&",
        "n < counts[0] &&",
        "repeats every row as often as the first one",
    ),
    Bug("run_lengths_kernel", "n < counts[i] &&", "n < 4 &&", "does not read the counts"),
    Bug(
        "run_lengths_repeated",
        "torch.repeat_interleave(rows, counts, 0)",
        "rows[:, None].expand(-1, int(counts.max()), -1).flatten(0, 1)",
        "repeats every row as often as the most repeated one",
    ),
    Bug(
        "dropped_spans_kernel",
        "t < start[i] + width[i]",
        "t < start[i] + width[0]",
        "uses one width for all samples",
    ),
    Bug(
        "dropped_spans_kernel",
        "f >= low[i] && f < high[i]",
        "f >= low[i] && f < low[i] + 4",
        "assumes the height of the task's own bands",
    ),
    Bug(
        "dropped_spans_kernel",
        "t < start[i] + width[i]",
        "t < 16",
        "assumes the end of the task's own spans",
    ),
    Bug(
        "cache_step_copied",
        "enumerate(lengths.tolist())",
        "enumerate([int(lengths[0])] * q.shape[0])",
        "uses the length of the first row for all",
    ),
    Bug(
        "cache_step_copied",
        "enumerate(lengths.tolist())",
        "enumerate([11] * q.shape[0])",
        "uses the lengths of the task's own inputs",
    ),
    Bug(
        "nibble_linear_kernel",
        "zero[o * (width / group) + g]",
        "8",
        "assumes the zero point of a new module",
    ),
    Bug(
        "nibble_linear_kernel",
        "zero[o * (width / group) + g]",
        "zero[o * (width / group)]",
        "uses the zero point of the first group for all",
    ),
)
TIES: tuple[Bug, ...] = (
    Bug(
        "keyed_order_counting",
        "for (long j = 0; j < length; ++j) {\n      const long at = start",
        "for (long j = length - 1; j >= 0; --j) {\n      const long at = start",
        "reverses the order of equal keys",
    ),
    Bug("edge_histogram_kernel", "v > edges[bins]", "v >= edges[bins]", "leaves out the last edge"),
    Bug(
        "edge_histogram_kernel", "!(v >= edges[0])", "!(v > edges[0])", "leaves out the first edge"
    ),
    Bug(
        "edge_histogram_kernel",
        "v >= edges[k + 1]",
        "v > edges[k + 1]",
        "counts a number at an edge below it",
    ),
    Bug("packed_flags_kernel", "x[i * length + at] > 0", "x[i * length + at] >= 0", ">= for >"),
    Bug("suppressed_boxes_kernel", "both > share", "both >= share", ">= for >"),
    Bug(
        "wrapped_angle_floor",
        "shifted - 360.0 * torch.floor(shifted / 360.0)",
        "360.0 - torch.remainder(-shifted, 360.0)",
        "wraps to (-180, 180]",
    ),
    Bug(
        "wrapped_angle_floor",
        "torch.floor(shifted / 360.0)",
        "torch.trunc(shifted / 360.0)",
        "truncates instead of rounding down",
    ),
    Bug(
        "wrapped_angle_floor",
        "torch.floor(shifted / 360.0)",
        "(shifted >= 360.0).float()",
        "removes at most one turn",
    ),
)
SUMS: tuple[Bug, ...] = (
    Bug("running_balance_blocks", "carry += total;", "carry = total - row[0];", "loses carries"),
    Bug(
        "running_balance_blocks",
        "carry += total;",
        "carry = float(_Float16(carry + total));",
        "a carry in half precision",
    ),
    Bug(
        "running_balance_blocks",
        "start + 512 < length ? start + 512 : length",
        "start + 512",
        "writes past the end of the row",
    ),
    Bug(
        "running_balance_blocks",
        "start < length; start += 512",
        "start + 512 <= length; start += 512",
        "leaves out the last short block",
    ),
    Bug(
        "averages_bf16_kernel",
        "float total = 0;",
        "_Float16 total = 0;",
        "a sum in half precision",
    ),
    Bug(
        "averages_bf16_kernel", "total / (j + 1)", "total / (j < 512 ? j + 1 : 512)", "capped count"
    ),
    Bug(
        "gated_bf16_wide",
        "gate * torch.sigmoid(gate)",
        "gate * torch.sigmoid(1.1 * gate)",
        "another slope",
    ),
)
MEMORY: tuple[Bug, ...] = (
    Bug(
        "cell_maxima_kernel",
        (
            "#pragma omp parallel for\n  for (long i = 0; i < rows; ++i) {\n"
            "    std::vector<char> hit(many, 0);"
        ),
        (
            "  std::vector<char> hit(many, 0);\n#pragma omp parallel for\n"
            "  for (long i = 0; i < rows; ++i) {"
        ),
        "all threads share one table of marks",
    ),
    Bug(
        "overlap_add_kernel",
        (
            "#pragma omp parallel for collapse(2)\n  for (long i = 0; i < rows; ++i) {\n"
            "    for (long t = 0; t < length; ++t) {\n      float total = 0, weight = 0;"
        ),
        (
            "  float total = 0, weight = 0;\n#pragma omp parallel for collapse(2)\n"
            "  for (long i = 0; i < rows; ++i) {\n"
            "    for (long t = 0; t < length; ++t) {\n      total = weight = 0;"
        ),
        "all threads share the sums",
    ),
    Bug(
        "run_lengths_kernel",
        "y = torch.zeros(",
        "y = torch.empty(",
        "does not write the places after the last repetition",
    ),
    Bug(
        "last_known_kernel",
        "    value[i] = 0;\n",
        "",
        "does not write the value of a row without a number",
    ),
    Bug(
        "signed_hash_kernel",
        "y = torch.zeros(values.shape[0], self.buckets)",
        (
            'if not hasattr(self, "y"):\n'
            "            self.y = torch.zeros(values.shape[0], self.buckets)\n"
            "        y = self.y"
        ),
        "adds to the sums of the call before",
    ),
    Bug(
        "cache_step_copied", "keys.clone(), values.clone()", "keys, values", "writes to its inputs"
    ),
    Bug(
        "bounded_weights_min_max",
        "limited = torch.minimum(self.weight, self.weight.new_tensor(0.5))",
        "limited = self.weight.data.clamp_(max=0.5)",
        "limits its weights in place, so that its state dict changes",
    ),
    Bug(
        "unit_weights_scaled",
        "scale = self.g / self.v.square().sum(1).sqrt()",
        (
            'if not hasattr(self, "scale"):\n'
            "            self.scale = (self.g / self.v.square().sum(1).sqrt()).detach()\n"
            "        scale = self.scale"
        ),
        "keeps the scale of the first call",
    ),
    Bug(
        "turned_pair_contiguous",
        "return y, y[:, ::2]",
        "y[:, ::2].add_(0.25)\n        return y - 0.25, y[:, ::2]",
        "changes an output that shares memory with another",
    ),
    Bug(
        "kept_or_normed_passed",
        "return x, x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)",
        "return x.div_(x.norm(dim=-1, keepdim=True).clamp(min=1e-12)), x",
        "normalises its input in place",
    ),
    Bug(
        "kept_or_normed_passed",
        ".clamp(min=1e-12)",
        ".add(1e-12)",
        "adds the epsilon instead of limiting",
    ),
)
BUGS: tuple[Bug, ...] = tuple(
    replace(bug, topic=topic)
    for topic, bugs in (
        ("inputs that never vary", INPUTS),
        ("ties of rounding", TIES),
        ("long sums", SUMS),
        ("unwritten memory and races", MEMORY),
    )
    for bug in bugs
)
