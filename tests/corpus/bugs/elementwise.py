"""Bugs in elementwise operations, copies, transforms and losses."""

from __future__ import annotations

from .bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug("gelu_erf", "0.7071067811865476", "0.7071", "a constant with too few digits"),
    Bug(
        "gelu_erf",
        "torch.erf(x * 0.7071067811865476)",
        "torch.tanh(0.7978845608 * (x + 0.044715 * x**3))",
        "the approximation by tanh",
    ),
    Bug("gelu_kernel", "0.5f * x[i]", "0.5f * std::fabs(x[i])", "the sign is lost"),
    Bug(
        "gelu_kernel",
        "i < n; ++i",
        "i < n / 8 * 8; ++i",
        "no tail: processes only whole vectors of eight",
        equivalent=("the declared shape has 528 elements, 66 vectors of eight"),
    ),
    Bug(
        "gelu_kernel",
        "i < n; ++i",
        "i < n / 32 * 32; ++i",
        "no tail: processes only whole vectors of 32",
    ),
    Bug(
        "small_exponentials",
        "torch.expm1(-2 * x.abs())",
        "torch.exp(-2 * x.abs()) - 1",
        "cancellation for small x",
        equivalent=(
            "the rule bounds absolute errors, and this one is a unit in the last "
            "place of the largest output"
        ),
    ),
    Bug(
        "branchy_reciprocal",
        "torch.where(x == 0, 0, x * torch.rsqrt(x))",
        "torch.where(x <= 0, 0, x * torch.rsqrt(x))",
        "zero for negative inputs instead of NaN",
    ),
    Bug("residual_written_out", "+ self.inner.bias", "", "no bias"),
    Bug("permute_kernel", "0.5f * x", "x", "the scale is omitted"),
    Bug(
        "permute_kernel",
        "std::min(j + 4, columns)",
        "j + 4",
        "a tile that reaches past the last column",
    ),
    Bug(
        "permute_view",
        "transpose(1, 2)",
        "reshape(x.shape[0], x.shape[2], x.shape[1])",
        "reshaped instead of transposed",
    ),
    Bug(
        "joined_parts",
        "y[: len(a)], y[len(a) :] = a + a, b + b",
        "y[: len(a)], y[len(a) + 1 :] = a + a, (b + b)[1:]",
        "the first row of the second part is never written",
    ),
    Bug(
        "broadcast_in_place",
        "torch.mul(x, scale)",
        "torch.mul(x, scale.transpose(1, 2))",
        "scales along the wrong axis of the same length",
    ),
    Bug("broadcast_in_place", ".transpose(0, 2)", ".transpose(0, 1)", "exchanges the wrong axes"),
    Bug(
        "broadcast_in_place", "torch.mul(x, scale)", "x.mul_(scale)", "the input is scaled in place"
    ),
    Bug(
        "activations_branches",
        "std::log1p(std::exp(-std::fabs(x[i])))",
        "std::log(1 + std::exp(-std::fabs(x[i])))",
        "log(1 + x) for small x without log1p",
        equivalent=(
            "the rule bounds absolute errors, and this one is a unit in the last place of 1"
        ),
    ),
    Bug(
        "activations_branches",
        "std::min(x[i], 0.0f) - rest",
        "-std::log(1 + std::exp(-x[i]))",
        "overflow far below zero",
    ),
    Bug(
        "activations_branches",
        "x[i] > 20 ? x[i] : std::max(x[i], 0.0f) + rest",
        "std::log1p(std::exp(x[i]))",
        "overflow far above zero",
    ),
    Bug(
        "activations_branches",
        "x[i] >= 3 ? x[i]",
        "x[i] >= 3.5f ? x[i]",
        "a branch starts too late",
    ),
    Bug(
        "huber_written_out",
        "0.5 * (error - 0.25)",
        "0.5 * (error - 0.5)",
        "the branches do not meet",
    ),
    Bug("huber_written_out", "error < 0.5", "error < 1", "uses the threshold of another loss"),
    Bug("huber_written_out", ".clamp(min=1)", "", "NaN if the mask keeps nothing"),
    Bug(
        "huber_written_out",
        "keep.sum().clamp(min=1)",
        "keep.numel()",
        "masked elements count in the mean",
    ),
    Bug(
        "spectrum_direct",
        "z.roll(1, -1).conj()",
        "z.roll(1, -1)",
        "the conjugation is omitted",
    ),
    Bug(
        "spectrum_direct",
        "F.pad(x, (n - 1, 0))",
        "torch.cat([x[..., 1:], x], -1)",
        "the convolution wraps around",
    ),
    Bug(
        "expanded_written_out",
        "torch.where(mask, s",
        "torch.where(mask[:1], s",
        "the mask of the first sample is used for all",
    ),
    Bug(
        "rounded_rows_kernel",
        "std::nearbyint(in[c] / scale)",
        "std::floor(in[c] / scale + 0.5f)",
        "rounds halves up instead of to even",
    ),
    Bug("rounded_rows_kernel", "std::nearbyint(", "std::trunc(", "truncates instead of rounding"),
    Bug("squared_error_sequential", "long i = 0", "long i = 1", "the first element is not added"),
    Bug(
        "squared_error_sequential",
        "i < n;",
        "i < n / 64 * 64;",
        "the elements after the last full block are not added",
    ),
)
