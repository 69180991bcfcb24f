"""Bugs in norms, moments and whole-tensor statistics."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug("layernorm_welford", "delta / (k + 1)", "delta / (k + 2)", "the count is one too large"),
    Bug(
        "layernorm_welford",
        "squares += delta * (row[k] - mean)",
        "squares += delta * delta",
        "squares the old difference",
    ),
    Bug(
        "layernorm_welford",
        "squares / width + eps",
        "squares / (width - 1) + eps",
        "the unbiased variance",
    ),
    Bug("layernorm_welford", "squares / width + eps", "squares / width", "no epsilon"),
    Bug(
        "layernorm_welford",
        "* scale * weight[k] + bias[k]",
        "* scale * weight[k] + bias[i]",
        "the bias of the row",
    ),
    Bug(
        "layernorm_welford",
        "1 / std::sqrt(squares / width + eps)",
        "1 / (std::sqrt(squares / width) + eps)",
        "adds epsilon outside the root",
    ),
    Bug("layernorm_two_passes", "self.norm.eps", "1e-6", "another epsilon"),
    Bug(
        "layernorm_two_passes",
        "centred.square().mean(-1, keepdim=True)",
        "x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()",
        "a one-pass variance",
    ),
    Bug("layernorm_shifted", "mean * mean", "mean", "the mean is not squared"),
    Bug(
        "layernorm_shifted",
        "x - x[:, :1]",
        "x - x[:1, :1]",
        "one shift for all rows, with cancellation if rows differ",
    ),
    Bug("layernorm_var_mean", "unbiased=False", "unbiased=True", "the unbiased variance"),
    Bug(
        "batchnorm_folded",
        "self.norm.running_var + self.norm.eps",
        "self.norm.running_var",
        "no epsilon",
    ),
    Bug(
        "batchnorm_folded",
        "- self.norm.running_mean * factor",
        "- self.norm.running_mean",
        "the mean is not scaled",
    ),
    Bug("batchnorm_folded", "self.norm.bias - ", "- ", "no bias"),
    Bug(
        "batchnorm_kernel",
        "/ std::sqrt(var[c] + eps)",
        "* std::sqrt(var[c] + eps)",
        "multiplies by the deviation",
    ),
    Bug(
        "batchnorm_kernel",
        "i < base + area",
        "i < base + area - 1",
        "the last place of each plane is never written",
    ),
    Bug(
        "batchnorm_kernel", "(x[i] - mean[c])", "(x[i] - mean[n])", "the mean of the wrong channel"
    ),
    Bug(
        "batchnorm_kernel",
        "(n * channels + c) * area",
        "(n * channels + n) * area",
        "the wrong plane: one is written many times, others never",
    ),
    Bug("rmsnorm_bf16_once", "+ 1e-6", "+ 1e-2", "a large epsilon"),
    Bug(
        "rmsnorm_bf16_once",
        ".mean(-1, keepdim=True)",
        ".sum(-1, keepdim=True)",
        "a sum instead of a mean",
    ),
    Bug("rmsnorm_bf16_twice", "x.shape[-1]", "(x.shape[-1] - 1)", "divides by one less"),
    Bug("moments_welford", "s / width", "s / (width - 1)", "the unbiased variance"),
    Bug(
        "moments_welford",
        "t = row[0]",
        "t = 0",
        "the maximum starts at zero",
    ),
    Bug(
        "moments_two_passes",
        "x - mean[:, None]",
        "x - mean.mean()",
        "one mean is subtracted from all rows",
    ),
    Bug(
        "groupnorm_reshaped",
        "torch.exp(-y)",
        "torch.exp(-1.702 * y)",
        "uses the factor of a fast GELU",
    ),
    Bug(
        "groupnorm_kernel", "g * per + i / area", "g + i / area", "the weight of the wrong channel"
    ),
    Bug(
        "groupnorm_kernel",
        "i < size; ++i) squares",
        "i < area; ++i) squares",
        "squares only the first channel",
    ),
    Bug(
        "groupnorm_kernel",
        "double sum = 0, squares = 0;",
        "float sum = 0, squares = 0;",
        "sums in fp32",
        equivalent=(
            "the sums have 60 terms, centred before squaring; their error is within that of fp32"
        ),
    ),
    Bug(
        "cosine_compensated",
        "p[k] / std::max(along, 1e-12f)",
        "p[k] / along",
        "no epsilon, which gives NaN for a row of zeros",
    ),
    Bug(
        "cosine_compensated",
        "(std::max(along, 1e-8f) * std::max(across, 1e-8f))",
        "(along * across)",
        "no epsilon, which gives NaN if one of the rows is zero",
    ),
    Bug(
        "cosine_compensated",
        "second.add(q[k] * q[k])",
        "second.add(p[k] * p[k])",
        "uses the length of the wrong vector",
    ),
    Bug(
        "cosine_compensated",
        "std::max(along, 1e-12f);",
        "(along + 1e-3f);",
        "adds a large epsilon",
    ),
    Bug(
        "moments_pairwise",
        "x[..., even:]",
        "x[..., even:] * 0",
        "omits the last element of an odd number",
    ),
    Bug(
        "layernorm_backward_kernel",
        "i < rows; ++i)\n      sum",
        "i < rows - 1; ++i)\n      sum",
        "a sum along columns omits the last row",
    ),
    Bug(
        "layernorm_backward_kernel",
        "slope += di[j] * w[j] *",
        "slope += j == width / 2 ? 0 : di[j] * w[j] *",
        "one term in the middle is omitted",
    ),
    Bug(
        "layernorm_backward_kernel",
        "squares / width + 1e-5f",
        "squares / (width - 1) + 1e-5f",
        "the unbiased variance",
    ),
    Bug(
        "whole_norm_lanes",
        "for (long i = whole; i < n; ++i) sum += (double)x[i] * x[i];",
        "",
        "the elements after the last full lanes are not added",
    ),
    Bug(
        "whole_norm_lanes",
        "= whole; i < n;",
        "= whole; i < n - 1;",
        "the last element is not added",
    ),
    Bug(
        "whole_norm_lanes",
        "double sum = 0;",
        "double sum = -x[0] * x[0];",
        "the first element is not added",
    ),
    Bug(
        "layer_scale_folded",
        "self.bn.running_var + self.bn.eps",
        "self.bn.running_var",
        "no epsilon in a branch whose gain is initialised with 1e-6",
    ),
    Bug("layer_scale_folded", "(z / (1 + torch.exp(-z)))", "0", "the branch is omitted"),
    Bug(
        "product_groups_welford",
        "const float variance = m2 / n;",
        "m2 = 0; for (long i = 0; i < n; ++i) m2 += in[i] * in[i];\n"
        "            const float variance = std::fmax(0.0f, m2 / n - mean * mean);",
        "a one-pass variance after a product",
    ),
    Bug(
        "unit_rows_by_sums",
        "length.clamp(min=1e-12)",
        "(length + 1e-6)",
        "short rows do not get unit length",
    ),
    Bug(
        "unit_rows_by_sums",
        ".sum(-1, keepdim=True).sqrt()",
        ".sum(-1, keepdim=True).add(1e-12).sqrt()",
        "the same, with the limit inside the root",
    ),
)
