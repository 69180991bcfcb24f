"""Lower sums, means, extremes, variances and norms over some dimensions."""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    floating,
    operand,
    rule,
)


@rule("sum", "mean", "amax", "amin")
def reduction(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    if not isinstance(x, str) or not floating(fx.args[0]) or not floating(fx) or not low.shape(x):
        return None
    dims = argument(fx, 1, "dim", None) or list(range(len(low.shape(x))))
    keep = bool(argument(fx, 2, "keepdim", False))
    name = str(fx.target).split(".")[1]
    if name == "mean":
        return low.mean(x, dims, keep, "mean")
    return low.reduce(name, x, dims, keep)


@rule("var", "std")
def variance(low: Lowering, fx: Any) -> str | None:
    x, dims = operand(low, fx.args[0]), argument(fx, 1, "dim")
    unbiased = fx.args[2] if len(fx.args) > 2 else fx.kwargs.get("unbiased", True)
    correction = fx.kwargs.get("correction", 1 if unbiased else 0)
    if not isinstance(x, str) or not isinstance(dims, list | tuple) or not dims:
        return None
    keep = bool(fx.kwargs.get("keepdim", fx.args[3] if len(fx.args) > 3 else False))
    count = math.prod(low.shape(x)[d] for d in dims)
    if count <= correction:
        return None
    centred = low.pointwise("sub", x, low.mean(x, dims, True), hint="centred")
    total = low.reduce("sum", low.pointwise("mul", centred, centred, hint="square"), dims, keep)
    var = low.pointwise("mul", total, 1.0 / (count - correction), hint="var")
    return low.pointwise("sqrt", var, hint="") if "std" in str(fx.target) else var


@rule("norm", "linalg_vector_norm")
def norm(low: Lowering, fx: Any) -> str | None:
    x, p = operand(low, fx.args[0]), argument(fx, 1, "p", 2)
    if not isinstance(x, str) or not floating(fx) or p not in (1, 2, None):
        return None
    dims = argument(fx, 2, "dim", None) or list(range(len(low.shape(x))))
    keep = bool(argument(fx, 3, "keepdim", False))
    if p == 1:
        return low.reduce("sum", low.pointwise("abs", x), dims, keep)
    total = low.reduce("sum", low.pointwise("mul", x, x, hint="square"), dims, keep)
    return low.pointwise("sqrt", total, hint="")


@rule("cosine_similarity")
def cosine_similarity(low: Lowering, fx: Any) -> str | None:
    """Lower the cosine similarity to sum(x y) / (max(|x|, eps) max(|y|, eps))."""
    x, y = operand(low, fx.args[0]), operand(low, fx.args[1])
    dim, eps = argument(fx, 2, "dim", 1), argument(fx, 3, "eps", 1e-8)
    if not isinstance(x, str) or not isinstance(y, str) or low.shape(x) != low.shape(y):
        return None
    dot = low.reduce("sum", low.pointwise("mul", x, y, hint="xy"), [dim], False, "dot")
    norms = []
    for name, side in ((x, "x"), (y, "y")):
        square = low.pointwise("mul", name, name, hint=f"{side}_square")
        length = low.pointwise("sqrt", low.reduce("sum", square, [dim], False), hint=f"{side}_norm")
        norms.append(low.pointwise("maximum", length, eps, hint=f"{side}_length"))
    return low.pointwise("div", dot, low.pointwise("mul", *norms, hint="lengths"), hint="")
