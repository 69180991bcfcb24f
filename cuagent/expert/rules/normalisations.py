"""Lower softmax and norms to row reductions and pointwise arithmetic.

Variances are computed about the mean (two passes), so that an offset costs no precision.
"""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    operator_name,
    rule,
    shape_of,
)


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(low: Lowering, fx: Any) -> str | None:
    x, dim = operand(low, fx.args[0]), fx.args[1]
    if not isinstance(x, str) or not floating(fx):
        return None
    shifted = low.pointwise("sub", x, low.reduce("max", x, [dim], True), hint="shifted")
    powers = low.pointwise("exp", shifted)
    total = low.reduce("sum", powers, [dim], True)
    if "log" in str(fx.target):
        return low.pointwise("sub", shifted, low.pointwise("log", total), hint="")
    return low.pointwise("mul", powers, low.pointwise("reciprocal", total), hint="")


@rule("logsumexp")
def logsumexp(low: Lowering, fx: Any) -> str | None:
    x, dims, keep = operand(low, fx.args[0]), fx.args[1], argument(fx, 2, "keepdim", False)
    if not isinstance(x, str):
        return None
    top = low.reduce("max", x, dims, True)  # as in softmax, so that both share it and the sum
    total = low.reduce("sum", low.pointwise("exp", low.pointwise("sub", x, top)), dims, True)
    hint = "" if keep else "keepdim"
    usual = low.pointwise("add", low.pointwise("log", total), top, hint="finite")
    # For a row of -inf, or with +inf, the result is the maximum, because x - max is NaN there.
    endless = low.pointwise("eq", low.pointwise("abs", top), math.inf, dtype="bool")
    # `max` ignores NaN. `amax` does not, but a loss with it took 15 % longer on a CPU. A sum of
    # numbers up to 0 is NaN only if one of them is.
    negative = low.reduce("sum", low.pointwise("minimum", x, 0.0), dims, True, "negative")
    spoilt = low.pointwise("ne", negative, negative, dtype="bool")
    top = low.pointwise("where", spoilt, math.nan, top)
    result = low.pointwise("where", endless, top, usual, hint=hint)
    return result if keep else low.view(result, shape_of(fx), "")


def normalised(low: Lowering, x: str, dims: list[int], eps: float) -> str:
    """Add (x - mean) / sqrt(var + eps), with mean and variance over `dims`; return the node's
    name."""
    centred = low.pointwise("sub", x, low.mean(x, dims, True), hint="centred")
    square = low.pointwise("mul", centred, centred, hint="square")
    variance = low.mean(square, dims, True, "var")
    scale = low.pointwise("rsqrt", low.pointwise("add", variance, eps, hint="var_eps"))
    return low.pointwise("mul", centred, scale, hint="normalised")


def affine(low: Lowering, x: str, weight: Any, bias: Any) -> str:
    """Add x * weight + bias; return the node's name. A weight or bias of None is left out."""
    if weight is not None:
        x = low.pointwise("mul", x, weight, hint="weighted")
    return x if bias is None else low.pointwise("add", x, bias, hint="biased")


@rule("layer_norm")
def layer_norm(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    dims = list(range(-len(fx.args[1]), 0))
    weight, bias = (operand(low, argument(fx, k, n)) for k, n in ((2, "weight"), (3, "bias")))
    if not isinstance(x, str):
        return None
    return affine(low, normalised(low, x, dims, argument(fx, 4, "eps", 1e-5)), weight, bias)


@rule("rms_norm")
def rms_norm(low: Lowering, fx: Any) -> str | None:
    x, weight = operand(low, fx.args[0]), operand(low, argument(fx, 2, "weight"))
    eps = argument(fx, 3, "eps")
    if not isinstance(x, str):
        return None
    eps = 1.1920928955078125e-07 if eps is None else eps
    square = low.mean(low.pointwise("mul", x, x, hint="square"), range(-len(fx.args[1]), 0), True)
    scale = low.pointwise("rsqrt", low.pointwise("add", square, eps, hint="mean_eps"))
    return affine(low, low.pointwise("mul", x, scale, hint="normalised"), weight, None)


@rule("group_norm")
def group_norm(low: Lowering, fx: Any) -> str | None:
    x, groups = operand(low, fx.args[0]), fx.args[1]
    if not isinstance(x, str):
        return None
    return _grouped(low, fx, x, groups, (2, 3), argument(fx, 4, "eps", 1e-5))


@rule("instance_norm")
def instance_norm(low: Lowering, fx: Any) -> str | None:
    x, from_input = operand(low, fx.args[0]), argument(fx, 5, "use_input_stats", True)
    if not isinstance(x, str) or not from_input:
        return None
    return _grouped(low, fx, x, shape_of(fx)[1], (1, 2), argument(fx, 7, "eps", 1e-5))


def _grouped(
    low: Lowering, fx: Any, x: str, groups: int, positions: tuple[int, int], eps: float
) -> str | None:
    """Lower a norm over groups of channels. `positions`: positions of weight and bias in the
    operator's arguments."""
    shape = low.shape(x)
    if not fx.args[0].meta["val"].is_contiguous() and not low.layouts:
        return None
    # With permuted dimensions, channels and positions of a group are not adjacent. Images may get
    # such a layout later, in a network.
    group: tuple[int, ...] = (math.prod(shape[1:]) // groups,)
    if low.layouts or len(shape) == 4:
        group = (shape[1] // groups, *shape[2:])
    rows = low.view(x, (shape[0], groups, *group), "groups")
    y = low.view(normalised(low, rows, list(range(-len(group), 0)), eps), shape, "ungrouped")
    over_channels = (shape[1],) + (1,) * (len(shape) - 2)
    weight, bias = (operand(low, argument(fx, k, "")) for k in positions)
    weight, bias = (
        low.view(p, over_channels, "per_channel") if isinstance(p, str) else None
        for p in (weight, bias)
    )
    return affine(low, y, weight, bias)


@rule("batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(low: Lowering, fx: Any) -> str | None:
    """Lower a batch norm in eval mode to one multiplication and one addition per channel, with
    factors computed from the parameters."""
    native = "native" in str(fx.target)
    x, weight, bias, mean, var = (operand(low, arg) for arg in fx.args[:5])
    if not native and fx.args[5]:
        return None
    if not isinstance(x, str) or not isinstance(mean, str) or not isinstance(var, str):
        return None
    eps = fx.args[6] if native else fx.args[7]
    scale = low.pointwise("rsqrt", low.pointwise("add", var, eps, hint="var_eps"))
    if weight is not None:
        scale = low.pointwise("mul", weight, scale, hint="scale")
    shift = low.pointwise("mul", mean, scale, hint="mean_scaled")
    if bias is not None:
        shift = low.pointwise("sub", bias, shift, hint="shift")
    else:
        shift = low.pointwise("neg", shift, hint="shift")
    over_channels = (low.shape(mean)[0],) + (1,) * (len(low.shape(x)) - 2)
    scale = low.view(scale, over_channels, "scale_")
    shift = low.view(shift, over_channels, "shift_")
    return low.pointwise(
        "add", low.pointwise("mul", x, scale, hint="scaled"), shift, hint="normalised"
    )


@rule("_native_batch_norm_legit")
def batch_statistics(low: Lowering, fx: Any) -> str | None:
    """Lower a batch norm with the statistics of its input, without running ones, to the norm alone.

    Weights are normalised so in networks with standardised weights. Not covered: readers of the
    statistics.
    """
    first_only = all(operator_name(u) == "getitem" and u.args[1] == 0 for u in fx.users)
    if not str(fx.target).endswith(".no_stats") or not first_only:
        return None
    x, weight, bias = (operand(low, arg) for arg in fx.args[:3])
    if not isinstance(x, str):
        return None
    shape = low.shape(x)
    y = normalised(low, x, [d for d in range(len(shape)) if d != 1], fx.args[5])
    over_channels = (shape[1],) + (1,) * (len(shape) - 2)
    weight, bias = (
        low.view(p, over_channels, "per_channel") if isinstance(p, str) else None
        for p in (weight, bias)
    )
    name = low.stored_as(affine(low, y, weight, bias), dtype_of(fx))
    low.multiple[fx.name] = (name,)
    return name
