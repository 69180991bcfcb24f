"""Bugs in long prefix sums, recurrences and compensated sums."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "exclusive_scan_blocks",
        "float carry = 0;",
        "_Float16 carry = 0;",
        "the carry between blocks is in half precision",
    ),
    Bug("exclusive_scan_blocks", "carry += sum;", "carry = sum;", "adds only the previous block"),
    Bug(
        "exclusive_scan_blocks",
        ("y[i * width + d] = carry + sum;\n        sum += x[i * width + d];"),
        ("sum += x[i * width + d];\n        y[i * width + d] = carry + sum;"),
        "also adds the element itself",
    ),
    Bug(
        "exclusive_scan_blocks",
        "float sum = 0;",
        "_Float16 sum = 0;",
        "sums of blocks are in half precision",
    ),
    Bug(
        "exclusive_scan_blocks",
        "start < width; start",
        "start + BLOCK <= width - BLOCK; start",
        "the last block is never written",
    ),
    Bug(
        "exclusive_scan_blocks",
        "BLOCK = 512",
        "BLOCK = 500",
        "the block size does not divide the row",
        equivalent="the end of each block is clamped to the width",
    ),
    Bug(
        "exclusive_scan_blocks",
        "float carry = 0;",
        "double carry = 0;",
        "the carry in double precision",
        equivalent="it is only more precise",
    ),
    Bug(
        "exclusive_scan_sequential",
        "double sum = 0;",
        "_Float16 sum = 0;",
        "a sum in half precision",
    ),
    Bug(
        "exclusive_scan_sequential",
        ("y[d] = sum;\n      sum += x[d];"),
        ("y[d] = sum;\n      sum = static_cast<_Float16>(sum) + x[d];"),
        "the sum passes through half precision at each step",
    ),
    Bug(
        "exclusive_scan_sequential",
        "double sum = 0;",
        "float sum = 0;",
        "a sum in single precision",
        equivalent="the task is in single precision",
    ),
    Bug(
        "moving_average_kernel",
        "float state = 0;",
        "float state = x[n * length * channels + c];",
        "the state starts with the first step",
    ),
    Bug(
        "moving_average_kernel",
        "float state = 0;",
        "_Float16 state = 0;",
        "the state is in half precision",
    ),
    Bug(
        "moving_average_kernel",
        "for (long t = 0; t < length; ++t) {",
        ("for (long t = 0; t < length; ++t) {\n        if (t % 128 == 0) state = 0;"),
        "the state is lost between blocks of 128 steps",
    ),
    Bug(
        "moving_average_kernel",
        "torch.sigmoid(self.rate), *x",
        "torch.linspace(1, 4, x.shape[2]).sigmoid(), *x",
        "uses the initial rates",
    ),
    Bug(
        "moving_average_kernel",
        "const float share = 1 - keep[c];",
        "const float share = keep[c] < 0.99f ? 1 - keep[c] : 0.01f;",
        ("the share of a step has a lower limit of 1/100, which no initial rate is near"),
    ),
    Bug(
        "moving_average_kernel",
        "state + share * x[at];",
        "state + x[at] - keep[c] * x[at];",
        "the share is not computed first",
        equivalent="it only adds one rounding of a number of the same size",
    ),
    Bug(
        "moving_average_chunks",
        "state = y[:, -1]",
        "state = part[:, -1]",
        "the state is the last step of a chunk, not the last average",
    ),
    Bug("moving_average_chunks", "(steps + 1)", "steps", "the state fades one step too late"),
    Bug(
        "restarted_sums_kernel",
        "if (start[at]) total = 0;",
        "if (t % 12 == 0) total = 0;",
        "sums restart at the steps of the task's own inputs",
    ),
    Bug(
        "restarted_sums_kernel",
        ("if (start[at]) total = 0;\n      total += x[at];\n      y[at] = total;"),
        ("total += x[at];\n      y[at] = total;\n      if (start[at]) total = 0;"),
        "sums restart one step too late",
    ),
    Bug(
        "restarted_sums_kernel",
        "start[at]",
        "start[t]",
        "all rows restart where the first one does",
    ),
    Bug(
        "restarted_sums_kernel", "float total = 0;", "_Float16 total = 0;", "sums in half precision"
    ),
    Bug(
        "pooled_online_kernel",
        "for (long d = 0; d < width; ++d) out[d] *= fade;",
        "// the sum is enough",
        "the result is not rescaled when the maximum grows",
    ),
    Bug(
        "pooled_online_kernel",
        "sum *= fade;",
        "// the result is enough",
        "the sum is not rescaled when the maximum grows",
    ),
    Bug(
        "pooled_online_kernel",
        ("largest = next;\n    }"),
        ("}\n    largest = 0;"),
        ("the previous maximum stays at minus infinity, so only the last block counts"),
    ),
    Bug(
        "pooled_online_kernel",
        "float largest = -INFINITY",
        "float largest = 0",
        "the maximum starts at zero",
    ),
    Bug(
        "pooled_online_kernel",
        "begin += BLOCK",
        "begin += BLOCK - (begin > 128)",
        "one score of each later block counts twice",
    ),
    Bug(
        "long_totals_kahan",
        "float sum = 0, lost = 0;",
        ("_Float16 sum = 0;\n    float lost = 0;"),
        ("the sum is in half precision, which the compensation cannot correct"),
    ),
    Bug(
        "long_totals_kahan",
        "const float term = x[i * width + d] - lost;",
        "const float term = x[i * width + d] + lost;",
        "the compensation is added instead of subtracted",
        equivalent="the error is at most twice that of a plain sum",
    ),
    Bug(
        "long_totals_kahan",
        "// Compensated: what an addition loses is kept.",
        "// cuagent: flags -ffast-math",
        "with -ffast-math the compiler removes the compensation",
        equivalent="the result is a plain vectorised sum, which the task admits",
    ),
    Bug(
        "long_totals_kahan",
        "d < width; ++d",
        "d < width - 1; ++d",
        "the last number of a row is not added",
    ),
    Bug(
        "box_sums_separable",
        "rows = torch.sum(x.unfold(-1, 9, 1), -1)",
        (
            "s = torch.constant_pad_nd(x.cumsum(-1), (1, 0))\n"
            "        rows = s[..., 9:] - s[..., :-9]"
        ),
        "differences of prefix sums along rows, which lose digits",
    ),
    Bug(
        "box_sums_separable",
        "return rows.unfold(-2, 9, 1).sum(-1) / 81",
        (
            "t = torch.constant_pad_nd(x, (1, 0, 1, 0)).cumsum(-1).cumsum(-2)\n"
            "        t = t[:, 9:] - t[:, :-9]\n"
            "        return (t[:, :, 9:] - t[:, :, :-9]) / 81"
        ),
        "a summed area table in single precision, which loses digits",
    ),
    Bug(
        "running_means_blocks",
        "carry = ends.cumsum(-1) - ends",
        "carry = (ends.half().cumsum(-1) - ends).float()",
        "carries in half precision",
    ),
    Bug(
        "running_means_blocks",
        "carry = ends.cumsum(-1) - ends",
        "carry = ends.cumsum(-1) - ends\n        carry[:, 59] = carry[:, 58]",
        "the last block has the carry of the one before",
    ),
    Bug(
        "running_means_blocks",
        "torch.arange(1, 6001)",
        "torch.arange(6000).clamp(min=1)",
        "divides by one less",
    ),
    Bug(
        "running_means_recurrent",
        "/ (d + 1)",
        "/ (d < 4096 ? d + 1 : 4096)",
        "a moving mean beyond 4096 numbers",
    ),
    Bug(
        "log_prefix_pairs",
        "return torch.stack(out, -1)",
        ("top = x.amax(-1, keepdim=True)\n        return (x - top).exp().cumsum(-1).log() + top"),
        "shifts by the largest number of the row, so early sums underflow",
    ),
    Bug(
        "log_prefix_pairs",
        "return torch.stack(out, -1)",
        "return x.exp().cumsum(-1).log()",
        "does not shift",
    ),
    Bug(
        "log_prefix_pairs",
        "torch.logaddexp(y, column)",
        "torch.maximum(torch.logaddexp(y, column), y + 1e-4)",
        "each number adds at least 1e-4",
    ),
    Bug(
        "log_prefix_running",
        "total * (top - new).nan_to_num(0.0).exp()",
        "total",
        "sums are not scaled when the maximum rises",
    ),
)
