"""Bugs that ignore inputs and buffers with the same values in all of the task's own draws."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "token_positions_fused",
        "positions[row] * width",
        "(row % length) * width",
        ("uses the step instead of the positions, which agree in the task's own inputs"),
    ),
    Bug(
        "token_positions_fused",
        "positions[row] * width",
        "positions[row % length] * width",
        "uses the positions of the first sample for all samples",
    ),
    Bug(
        "token_positions_fused",
        "positions[row] * width",
        "(positions[row - row % length] + row % length) * width",
        ("assumes consecutive positions from the first one of a sample"),
    ),
    Bug(
        "token_positions_gathered",
        "self.places.weight.index_select(0, positions.flatten())",
        "self.places.weight[: ids.shape[1]].repeat(ids.shape[0], 1)",
        "uses the first rows of the table for all positions",
    ),
    Bug(
        "rope_tables_pairs",
        "const long at = positions[t];",
        "const long at = t;",
        "the positions are not read",
    ),
    Bug(
        "rope_tables_pairs",
        "const long at = positions[t];",
        "const long at = positions[0] + t;",
        "reads only the first position and assumes consecutive ones",
    ),
    Bug(
        "rope_tables_pairs",
        (
            'self.register_buffer("sin", angle.sin())\n'
            "\n"
            "    def forward(self, x, positions):\n"
            "        y = torch.empty_like(x)\n"
            "        heads = x.shape[0] * x.shape[1]\n"
            "        kernel.turn(y, x, positions, self.cos, self.sin, heads, "
            "*x.shape[2:])"
        ),
        (
            'self.register_buffer("sin", angle.sin())\n'
            "        self.tables = angle.cos(), angle.sin()\n"
            "\n"
            "    def forward(self, x, positions):\n"
            "        y = torch.empty_like(x)\n"
            "        heads = x.shape[0] * x.shape[1]\n"
            "        kernel.turn(y, x, positions, *self.tables, heads, "
            "*x.shape[2:])"
        ),
        ("keeps the initial tables as plain attributes and ignores loaded ones"),
    ),
    Bug(
        "rope_tables_pairs",
        "y = torch.empty_like(x)",
        "y = x.new_empty(x.shape)",
        "allocates the result in another way",
        equivalent="both allocations have the same form",
    ),
    Bug(
        "rope_tables_complex",
        "[positions]",
        "[: x.shape[2]]",
        "uses the first angles of the table for all positions",
    ),
    Bug(
        "rope_tables_complex",
        "torch.complex(self.cos, self.sin)",
        ("torch.polar(torch.ones_like(self.cos), torch.atan2(self.sin, self.cos))"),
        "uses the angle of the table entries, but not their absolute value",
    ),
    Bug(
        "sinusoidal_kernel",
        "table + start[0] * width",
        "table + 0 * width",
        "assumes a start of zero",
    ),
    Bug(
        "sinusoidal_kernel",
        "table + start[0] * width",
        "table + (start[0] > 0 ? length : 0) * width",
        ("only tests if the start is zero, as between a prompt and the step after it"),
    ),
    Bug(
        "bag_offsets_loop",
        (
            "const long begin = offsets[b];\n"
            "    const long end = b + 1 < bags ? offsets[b + 1] : count;"
        ),
        ("const long begin = b * (count / bags);\n    const long end = begin + count / bags;"),
        "assumes bags of equal length",
    ),
    Bug(
        "bag_offsets_loop",
        "offsets[b + 1] : count",
        "begin + offsets[1] : count",
        "assumes that all bags except the last have the length of the first",
    ),
    Bug(
        "bag_offsets_loop",
        "out[d] /= members;",
        "out[d] /= count / bags;",
        "the sum is divided by the mean length of all bags",
    ),
    Bug("bag_offsets_loop", "if (members > 0)", "if (true)", "an empty bag is divided by zero"),
    Bug(
        "bag_offsets_loop",
        "begin; i < end; ++i",
        "begin; i < begin + 8; ++i",
        ("assumes eight rows per bag, as in the task's own inputs"),
    ),
    Bug(
        "bag_offsets_scatter",
        "torch.searchsorted(offsets, at, right=True) - 1",
        "at // (ids.numel() // bags)",
        "the bag of an index is found by a division",
    ),
    Bug(
        "bag_offsets_scatter",
        "torch.bincount(bag, minlength=bags).clamp(min=1)",
        "offsets.diff(append=offsets.new_tensor([ids.numel()]))",
        "an empty bag is divided by zero",
    ),
    Bug(
        "full_lengths_kernel",
        "const long steps = std::min(lengths[n], length);",
        "const long steps = length;",
        "sums padding steps, and uses the last padded step as the last step",
    ),
    Bug(
        "full_lengths_kernel",
        "std::max(lengths[n], 1L)",
        "length",
        "the sum is divided by the padded length",
    ),
    Bug(
        "full_lengths_kernel",
        "std::max(steps - 1, 0L)",
        "length - 1",
        "uses the last step of the padding",
    ),
    Bug(
        "full_lengths_kernel",
        "std::min(lengths[n], length);",
        "std::min(lengths[0], length);",
        "uses the length of the first sequence for all",
    ),
    Bug(
        "full_lengths_kernel",
        "std::max(lengths[n], 1L)",
        "lengths[n]",
        "a sequence without steps is divided by zero",
    ),
    Bug(
        "full_lengths_prefix",
        "sample[max(steps - 1, 0)]",
        "sample[-1]",
        "uses the last step of the padding",
    ),
    Bug(
        "score_mask_rows",
        "mask[i * length + j] ?",
        "j <= i ?",
        "assumes a causal mask and does not read the mask",
    ),
    Bug(
        "score_mask_rows",
        ("for (long j = 0; j < length; ++j) {\n        float dot = 0;"),
        (
            "std::fill(score.begin(), score.end(), -INFINITY);\n"
            "      for (long j = 0; j <= i; ++j) {\n"
            "        float dot = 0;"
        ),
        ("skips elements behind the diagonal, which the mask may show"),
    ),
    Bug(
        "score_mask_rows",
        "mask[i * length + j] ?",
        "mask[j * length + i] ?",
        "the mask is read as if it were transposed",
    ),
    Bug(
        "score_mask_rows",
        "score[j] / sum * v",
        "score[j] * (1 / sum) * v",
        "one division instead of many",
        equivalent="it only adds one rounding",
    ),
    Bug(
        "score_mask_added",
        'torch.where(mask, 0.0, float("-inf")).to(q.dtype)',
        'q.new_full(mask.shape, float("-inf")).triu(1)',
        "uses a causal mask instead of the given one",
    ),
    Bug(
        "score_mask_added",
        'torch.where(mask, 0.0, float("-inf")).to(q.dtype)',
        'torch.where(mask.tril(), 0.0, float("-inf")).to(q.dtype)',
        "uses only the lower triangle of the mask",
    ),
    Bug(
        "padding_keys_kernel",
        "keep[n * length + t] ? dot : -INFINITY",
        "dot",
        "the mask is not read",
    ),
    Bug(
        "padding_keys_kernel",
        "keep[n * length + t]",
        "keep[t]",
        "uses the mask of the first sample for all",
    ),
    Bug(
        "padding_keys_kernel",
        ("for (long t = 0; t < length; ++t) sum += score[t] = std::exp(score[t] - largest);"),
        (
            "for (long t = 0; t < length; ++t) {\n"
            "      sum += std::exp(score[t] - largest);\n"
            "      score[t] = score[t] > -INFINITY ? 0 + std::exp(score[t] - "
            "largest) : 0;\n"
            "    }"
        ),
        "splits one statement into two",
        equivalent=(
            "the exponential of minus infinity is zero; if all steps are hidden, "
            "the sum is NaN in both"
        ),
    ),
    Bug(
        "padding_keys_kernel",
        (
            "score[t] = keep[n * length + t] ? dot : -INFINITY;\n"
            "      largest = std::max(largest, score[t]);\n"
            "    }\n"
            "    for (long t = 0; t < length; ++t) sum += score[t] = "
            "std::exp(score[t] - largest);"
        ),
        (
            "score[t] = dot;\n"
            "      largest = std::max(largest, score[t]);\n"
            "    }\n"
            "    for (long t = 0; t < length; ++t) sum += score[t] = "
            "std::exp(score[t] - largest);\n"
            "    for (long t = 0; t < length; ++t) score[t] *= keep[n * length + "
            "t];"
        ),
        "omits hidden steps in the result, but not in the sum of weights",
    ),
    Bug(
        "decode_step_online",
        "std::min(position[0] + 1, length)",
        "std::min(31L, length)",
        "uses the position of the task's own inputs",
    ),
    Bug(
        "decode_step_online",
        "std::min(position[0] + 1, length)",
        "length",
        "the whole cache is read",
    ),
    Bug(
        "decode_step_online",
        "std::min(position[0] + 1, length)",
        "std::min(position[0], length)",
        "the newest entry is omitted",
    ),
    Bug(
        "decode_step_online",
        "std::min(position[0] + 1, length)",
        "std::max(31L, std::min(position[0] + 1, length))",
        ("reads at least as much of the cache as at the position of the task's own inputs"),
    ),
    Bug(
        "decode_step_sliced",
        "max(int(position) + 1, 0)",
        "31",
        "the position is fixed, as when a graph was captured",
    ),
    Bug(
        "cache_write_kernel",
        "slots[j];",
        "slots[0] + j;",
        "assumes consecutive slots",
    ),
    Bug(
        "cache_write_kernel",
        "slots[j];",
        "length / 2 + j;",
        "uses the slots of the task's own inputs",
    ),
    Bug(
        "segment_means_kernel",
        "ids[i];",
        "i * segments / rows;",
        "assumes segments of equal length",
    ),
    Bug(
        "segment_means_kernel",
        "std::max(members[s], 1.0f)",
        "members[s]",
        "a segment without rows is divided by zero",
    ),
    Bug(
        "segment_means_kernel",
        "std::max(members[s], 1.0f)",
        "static_cast<float>(rows / segments)",
        "the sum is divided by the mean length of segments",
    ),
    Bug(
        "segment_means_kernel",
        "y[s * width + d] += x[i * width + d];",
        ("y[s * width + d] = (members[s] > 1 ? y[s * width + d] : 0) + x[i * width + d];"),
        "sums start with the first row of a segment",
        equivalent="they started at zero",
    ),
    Bug(
        "packed_attention_rows",
        (
            "long begin = 0, end = count;\n"
            "    for (long b = 1; b < numbers; ++b)\n"
            "      if (bounds[b] <= i)\n"
            "        begin = std::max(begin, bounds[b]);\n"
            "      else\n"
            "        end = std::min(end, bounds[b]);"
        ),
        (
            "const long each = count / (numbers - 1);\n"
            "    const long begin = i / each * each, end = begin + each;"
        ),
        "assumes sequences of equal length",
    ),
    Bug(
        "packed_attention_rows",
        ("else\n        end = std::min(end, bounds[b]);"),
        ("else\n        end = std::min(begin + bounds[1] - bounds[0], count);"),
        "assumes that each sequence has the length of the first",
    ),
    Bug(
        "packed_attention_rows",
        "bounds[b] <= i",
        "bounds[b] < i",
        "the first token of a sequence sees the last token of the previous one",
    ),
    Bug(
        "packed_attention_rows",
        "score(end - begin);",
        "score(end - begin); end = std::min(end, begin + 10);",
        ("reads at most ten tokens per tile, as in the task's own sequences"),
    ),
    Bug(
        "packed_attention_split",
        "[0, *bounds[1:].tolist(), q.shape[0]]",
        "range(0, q.shape[0] + 1, q.shape[0] // (bounds.numel() - 1))",
        "splits the sequences at equal distances",
    ),
    Bug(
        "skip_flags_kernel",
        "if (!active[i]) continue;",
        "// all are active",
        "the flags are not read",
    ),
    Bug(
        "skip_flags_kernel",
        "active[i]",
        "active[0]",
        "uses the flag of the first sample for all",
    ),
    Bug(
        "skip_flags_kernel",
        ("y[i * width + j] = x[i * width + j];\n      if (!active[i]) continue;"),
        ("if (!active[i]) continue;\n      y[i * width + j] = x[i * width + j];"),
        "skipped samples are never written",
    ),
    Bug(
        "observation_norm_kernel",
        "x[i * width + d] - mean[d]",
        "x[i * width + d]",
        "the mean, initially zero, is not subtracted",
    ),
    Bug(
        "observation_norm_kernel",
        "/ std::sqrt(var[d] + 1e-8f)",
        "",
        "the variance, initially one, is not read",
    ),
    Bug(
        "observation_norm_kernel",
        "std::sqrt(var[d] + 1e-8f)",
        "(var[d] + 1e-8f)",
        "divides by the variance, which initially equals its root",
    ),
    Bug(
        "observation_norm_kernel",
        "var[d] + 1e-8f",
        "var[0] + 1e-8f",
        "uses one variance for all columns",
    ),
    Bug(
        "observation_norm_kernel",
        "z < -5 ? -5 : z > 5 ? 5 : z",
        "z",
        "results are not clamped to five",
    ),
    Bug(
        "relative_bias_kernel",
        "index[i * length + j]",
        "j - i + length - 1",
        "computes the index from both positions instead of reading the buffer",
    ),
    Bug(
        "relative_bias_kernel",
        "index[i * length + j]",
        "index[j * length + i]",
        "the index is read as if it were transposed",
    ),
    Bug(
        "relative_bias_kernel",
        "index[i * length + j]",
        "index[0] + j - i",
        "reads only the first number of the buffer and derives the others",
    ),
)
