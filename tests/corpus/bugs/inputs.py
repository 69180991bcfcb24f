"""Inputs and buffers that a task always gives alike, which a wrong kernel ignores."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "token_positions_fused",
        "positions[row] * width",
        "(row % length) * width",
        ("the positions are not read: the step itself is taken, as the task's own inputs have it"),
    ),
    Bug(
        "token_positions_fused",
        "positions[row] * width",
        "positions[row % length] * width",
        "the positions of the first sample are taken for all",
    ),
    Bug(
        "token_positions_fused",
        "positions[row] * width",
        "(positions[row - row % length] + row % length) * width",
        ("positions are taken to follow each other from the first one of a sample"),
    ),
    Bug(
        "token_positions_gathered",
        "self.places.weight.index_select(0, positions.flatten())",
        "self.places.weight[: ids.shape[1]].repeat(ids.shape[0], 1)",
        "the first rows of the table are repeated, whatever the positions",
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
        "only the first position is read, as if the others followed it",
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
        ("tables that are kept as plain attributes from construction: loaded ones are ignored"),
    ),
    Bug(
        "rope_tables_pairs",
        "y = torch.empty_like(x)",
        "y = x.new_empty(x.shape)",
        "another way to memory for the result",
        equivalent="both give memory of the same form",
    ),
    Bug(
        "rope_tables_complex",
        "[positions]",
        "[: x.shape[2]]",
        "the first angles of the table, whatever the positions",
    ),
    Bug(
        "rope_tables_complex",
        "torch.complex(self.cos, self.sin)",
        ("torch.polar(torch.ones_like(self.cos), torch.atan2(self.sin, self.cos))"),
        "only the angle of the tables counts, not their size",
    ),
    Bug(
        "sinusoidal_kernel",
        "table + start[0] * width",
        "table + 0 * width",
        "the start is taken to be zero",
    ),
    Bug(
        "sinusoidal_kernel",
        "table + start[0] * width",
        "table + (start[0] > 0 ? length : 0) * width",
        ("only whether it starts at zero counts, as between a prompt and one step after it"),
    ),
    Bug(
        "bag_offsets_loop",
        (
            "const long begin = offsets[b];\n"
            "    const long end = b + 1 < bags ? offsets[b + 1] : count;"
        ),
        ("const long begin = b * (count / bags);\n    const long end = begin + count / bags;"),
        "all bags are taken to be equally long",
    ),
    Bug(
        "bag_offsets_loop",
        "offsets[b + 1] : count",
        "begin + offsets[1] : count",
        "all bags but the last one are taken to be as long as the first",
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
        ("the number of rows in a bag is fixed at the eight of the task's own inputs"),
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
        "steps of padding are summed, and the last of all is taken for the last",
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
        "the last step of the padding is taken",
    ),
    Bug(
        "full_lengths_kernel",
        "std::min(lengths[n], length);",
        "std::min(lengths[0], length);",
        "the length of the first sequence is taken for all",
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
        "the last step of the padding is taken",
    ),
    Bug(
        "score_mask_rows",
        "mask[i * length + j] ?",
        "j <= i ?",
        "the mask is taken to be causal and is not read",
    ),
    Bug(
        "score_mask_rows",
        ("for (long j = 0; j < length; ++j) {\n        float dot = 0;"),
        (
            "std::fill(score.begin(), score.end(), -INFINITY);\n"
            "      for (long j = 0; j <= i; ++j) {\n"
            "        float dot = 0;"
        ),
        ("what lies behind the diagonal is skipped, although the mask may show it"),
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
        "one division in place of many",
        equivalent="it is one more rounding",
    ),
    Bug(
        "score_mask_added",
        'torch.where(mask, 0.0, float("-inf")).to(q.dtype)',
        'q.new_full(mask.shape, float("-inf")).triu(1)',
        "a causal mask is made instead of the one that is given",
    ),
    Bug(
        "score_mask_added",
        'torch.where(mask, 0.0, float("-inf")).to(q.dtype)',
        'torch.where(mask.tril(), 0.0, float("-inf")).to(q.dtype)',
        "only the lower triangle of the mask counts",
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
        "the mask of the first sample is taken for all",
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
        "the same in two statements",
        equivalent=(
            "the exponential of minus infinity is zero; where all steps are hidden "
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
        "hidden steps are left out of the result but not of the sum of weights",
    ),
    Bug(
        "decode_step_online",
        "std::min(position[0] + 1, length)",
        "std::min(31L, length)",
        "the position is fixed at the one of the task's own inputs",
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
        "the newest entry is left out",
    ),
    Bug(
        "decode_step_online",
        "std::min(position[0] + 1, length)",
        "std::max(31L, std::min(position[0] + 1, length))",
        ("no less of the cache is read than at the position of the task's own inputs"),
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
        "the slots are taken to follow each other",
    ),
    Bug(
        "cache_write_kernel",
        "slots[j];",
        "length / 2 + j;",
        "the slots are fixed at those of the task's own inputs",
    ),
    Bug(
        "segment_means_kernel",
        "ids[i];",
        "i * segments / rows;",
        "all segments are taken to be equally long",
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
        "sums begin with the first row of a segment",
        equivalent="they were zero before",
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
        "all sequences are taken to be equally long",
    ),
    Bug(
        "packed_attention_rows",
        ("else\n        end = std::min(end, bounds[b]);"),
        ("else\n        end = std::min(begin + bounds[1] - bounds[0], count);"),
        "each sequence is taken to be as long as the first",
    ),
    Bug(
        "packed_attention_rows",
        "bounds[b] <= i",
        "bounds[b] < i",
        "the first token of a sequence still sees the one before",
    ),
    Bug(
        "packed_attention_rows",
        "score(end - begin);",
        "score(end - begin); end = std::min(end, begin + 10);",
        ("a tile holds the ten tokens of the task's own sequences, and no more are read"),
    ),
    Bug(
        "packed_attention_split",
        "[0, *bounds[1:].tolist(), q.shape[0]]",
        "range(0, q.shape[0] + 1, q.shape[0] // (bounds.numel() - 1))",
        "the sequences are cut at equal distances",
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
        "the flag of the first sample is taken for all",
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
        "the mean is not taken off: it is zero at first",
    ),
    Bug(
        "observation_norm_kernel",
        "/ std::sqrt(var[d] + 1e-8f)",
        "",
        "the variance is not read: it is one at first",
    ),
    Bug(
        "observation_norm_kernel",
        "std::sqrt(var[d] + 1e-8f)",
        "(var[d] + 1e-8f)",
        "divided by the variance, whose root is the same at first",
    ),
    Bug(
        "observation_norm_kernel",
        "var[d] + 1e-8f",
        "var[0] + 1e-8f",
        "one variance for all columns",
    ),
    Bug(
        "observation_norm_kernel",
        "z < -5 ? -5 : z > 5 ? 5 : z",
        "z",
        "results are not held within five",
    ),
    Bug(
        "relative_bias_kernel",
        "index[i * length + j]",
        "j - i + length - 1",
        "the index is computed from the two places, whatever the buffer holds",
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
        "only the first number of the buffer is read, and the others from it",
    ),
)
