"""Lower sums, means, extremes, variances and norms over some dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    operator_name,
    rule,
    target_of,
    value_of,
)
from cuagent.expert.rules.views import narrowed, viewed


@rule("sum", "mean", "amax", "amin")
def reduction(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    if not isinstance(x, str) or not low.shape(x):
        return None
    if dtype_of(fx.args[0]) == "bool" and operator_name(fx) == "sum":
        return _count(low, fx, x)
    if not floating(fx.args[0]) or not floating(fx):
        return None
    dims = argument(fx, 1, "dim", None) or list(range(len(low.shape(x))))
    keep = bool(argument(fx, 2, "keepdim", False))
    name = str(fx.target).split(".")[1]
    if name == "sum" and not keep and (total := _sum_of_stack(low, fx, dims)):
        return total
    if name == "mean":
        return low.mean(x, dims, keep, "mean")
    return low.reduce(name, x, dims, keep)


MOST_TERMS = 128
"""Largest number of stacked parts whose sum is computed without a loop."""


def _sum_of_stack(low: Lowering, fx: Any, dims: Sequence[int] | int) -> str | None:
    """Add the sum of stacked parts along at least the stacked dimension, without the stack; return
    its name.

    None on a GPU, where a kernel reads few tensors, if other operators read the stack, or if the
    argument is none. The terms are added in pairs.
    """
    stack = fx.args[0]
    if value_of(fx).device.type != "cpu":
        return None
    if target_of(stack) != "stack" or len(stack.users) > 1 or dtype_of(stack) != "float32":
        return None
    parts = [operand(low, part) for part in stack.args[0]]
    terms = [part for part in parts if isinstance(part, str)]
    rank = len(low.shape(terms[0])) + 1 if terms else 0
    over = sorted(d % rank for d in ([dims] if isinstance(dims, int) else dims)) if rank else []
    dim = argument(stack, 1, "dim", 0) % max(rank, 1)
    if len(terms) < len(parts) or len(terms) > MOST_TERMS or dim not in over or rank == 1:
        return None
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=False)
        rest = terms[-1:] if len(terms) % 2 else []
        terms = [low.pointwise("add", a, b, hint="term") for a, b in pairs] + rest
    left = [d - (d > dim) for d in over if d != dim]
    return low.reduce("sum", terms[0], left, False) if left else terms[0]


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
    x, p = operand(low, fx.args[0]), argument(fx, 1, "p", argument(fx, 1, "ord", 2))
    p = 2 if p is None else p
    if not isinstance(x, str) or not floating(fx) or not isinstance(p, int | float) or p == 0:
        return None
    dims = argument(fx, 2, "dim", None)
    dims = [dims] if isinstance(dims, int) else dims or list(range(len(low.shape(x))))
    keep = bool(argument(fx, 3, "keepdim", False))
    if math.isinf(p):
        return low.reduce("amax" if p > 0 else "amin", low.pointwise("abs", x), dims, keep)
    if p == 1:
        return low.reduce("sum", low.pointwise("abs", x), dims, keep)
    if p == 2:
        total = low.reduce("sum", low.pointwise("mul", x, x, hint="square"), dims, keep)
        return low.pointwise("sqrt", total, hint="")
    power = low.pointwise("pow", low.pointwise("abs", x), float(p), hint="power")
    return low.pointwise("pow", low.reduce("sum", power, dims, keep), 1 / p, hint="")


MOST_FACTORS = 8
"""Largest number of slices whose product is computed without a loop."""


@rule("prod")
def product(low: Lowering, fx: Any) -> str | None:
    """Lower the product along a short dimension."""
    x, dim = operand(low, fx.args[0]), argument(fx, 1, "dim")
    if not isinstance(x, str) or not isinstance(dim, int) or not floating(fx):
        return None
    if not floating(fx.args[0]) or not low.shape(x) or low.shape(x)[dim] > MOST_FACTORS:
        return None
    value = narrowed(low, x, dim, 0, 1)
    for k in range(1, low.shape(x)[dim]):
        value = low.pointwise("mul", value, narrowed(low, x, dim, k, k + 1), hint="factors")
    if bool(argument(fx, 2, "keepdim", False)):
        return value
    shape = list(low.shape(value))
    del shape[dim]
    return viewed(low, value, tuple(shape))


@rule("all", "any")
def quantified(low: Lowering, fx: Any) -> str | None:
    """Lower to the least or the largest of ones and zeros; not for uint8, whose result is uint8."""
    x, dims = operand(low, fx.args[0]), argument(fx, 1, "dim")
    if not isinstance(x, str) or not low.shape(x) or dtype_of(fx) != "bool":
        return None
    dims = list(range(len(low.shape(x)))) if dims is None else dims
    dims = [dims] if isinstance(dims, int) else list(dims)
    keep = bool(argument(fx, 2, "keepdim", False))
    if dtype_of(fx.args[0]) != "bool":
        x = low.pointwise("ne", x, 0, hint="nonzero", dtype="bool")
    return quantifier(low, operator_name(fx), x, dims, keep=keep, hint="")


def quantifier(
    low: Lowering, name: str, x: str, dims: list[int], *, keep: bool, hint: str = "found"
) -> str:
    """Add `all` or `any` (`name`) of the booleans `x` over `dims`; return the node's name."""
    ones = low.pointwise("where", x, 1.0, 0.0, hint="ones")
    most = low.reduce({"all": "min", "any": "max"}[name], ones, dims, keep)
    return low.pointwise("gt", most, 0.5, hint=hint, dtype="bool")


MOST_COUNTED = 1 << 24
"""Largest count that float32 holds exactly."""


def _count(low: Lowering, fx: Any, x: str) -> str | None:
    """Return the number of true elements, as integers or as floats."""
    dims = argument(fx, 1, "dim", None) or list(range(len(low.shape(x))))
    dims = [dims] if isinstance(dims, int) else list(dims)
    whole = dtype_of(fx) == "int64"
    if not (whole or floating(fx)) or math.prod(low.shape(x)[d] for d in dims) > MOST_COUNTED:
        return None
    keep = bool(argument(fx, 2, "keepdim", False))
    ones = low.pointwise("where", x, 1.0, 0.0, hint="ones")
    total = low.reduce("sum", ones, dims, keep, "count" if whole else "")
    return low.pointwise("cast", total, hint="", dtype="int64") if whole else total


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
