"""Lower operators that are short formulas of other operators: functions, losses of pairs,
differences.

Each formula is equal to the operator's definition, and accurate where the direct formula would
cancel or overflow.
"""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.graph.lowering import Lowering, argument, floating, operand, operator_name, rule
from cuagent.expert.rules.losses import MEAN, reduced
from cuagent.expert.rules.reductions import variance
from cuagent.expert.rules.views import narrowed

LARGE = 1e9
"""Bound on |x| above which x * x + 1 equals x * x in float32."""
EXP_ALONE = 20.0
"""Bound on x above which exp(-x) is below the rounding error of exp(x) in float32."""


def _tensors(low: Lowering, fx: Any, count: int) -> list[str] | None:
    """Return the node names of the operator's first `count` arguments; None unless all are
    floating-point tensors."""
    names = [operand(low, arg) for arg in fx.args[:count]]
    fit = len(names) == count and floating(fx) and all(floating(arg) for arg in fx.args[:count])
    return names if fit and all(isinstance(name, str) for name in names) else None  # type: ignore[return-value]


@rule("sinh", "asinh", "atanh")
def odd(low: Lowering, fx: Any) -> str | None:
    """Lower odd functions (sinh, asinh, ...) as sign(x) f(|x|), with f in terms of expm1 and
    log1p."""
    found = _tensors(low, fx, 1)
    if found is None:
        return None
    (x,) = found
    p, size = low.pointwise, low.pointwise("abs", x)
    match operator_name(fx):
        case "sinh":
            power = p("expm1", size)
            near = p("mul", p("add", power, p("div", power, p("add", power, 1.0))), 0.5)
            far = p("mul", power, 0.5, hint="half")
            value = p("where", p("lt", size, EXP_ALONE, dtype="bool"), near, far)
        case "asinh":
            root = p("sqrt", p("add", p("mul", size, size), 1.0))
            near = p("log1p", p("add", size, p("div", p("mul", size, size), p("add", root, 1.0))))
            far = p("add", p("log", size), math.log(2), hint="far")
            value = p("where", p("lt", size, LARGE, dtype="bool"), near, far)
        case _:
            ratio = p("div", p("mul", size, 2.0), p("sub", 1.0, size))
            value = p("mul", p("log1p", ratio), 0.5)
    # The sign multiplies the value: then NaN stays NaN and 0 stays 0, as they would not in a
    # `where`.
    return p("mul", p("sign", x), value, hint="")


@rule("cosh", "acosh", "tan", "log2", "log10", "frac", "sgn")
def function(low: Lowering, fx: Any) -> str | None:
    found = _tensors(low, fx, 1)
    if found is None:
        return None
    (x,) = found
    p = low.pointwise
    match operator_name(fx):
        case "cosh":
            half = p("mul", p("exp", p("abs", x)), 0.5, hint="half")
            return p("add", half, p("div", 0.25, half), hint="")
        case "acosh":
            past = p("sub", x, 1.0, hint="past")
            # Take two roots: below -1 both factors are negative, and the root of their product
            # would not be NaN.
            root = p("mul", p("sqrt", past), p("sqrt", p("add", past, 2.0)))
            near, far = p("log1p", p("add", past, root)), p("add", p("log", x), math.log(2))
            return p("where", p("lt", x, LARGE, dtype="bool"), near, far, hint="")
        case "tan":
            return p("div", p("sin", x), p("cos", x), hint="")
        case "log2" | "log10" as name:
            return p("mul", p("log", x), 1 / math.log(float(name[3:])), hint="")
        case "frac":
            return p("sub", x, p("trunc", x), hint="")
    return p("sign", x, hint="")


@rule("celu", "logit")
def parametric(low: Lowering, fx: Any) -> str | None:
    found = _tensors(low, fx, 1)
    if found is None:
        return None
    (x,) = found
    p = low.pointwise
    if operator_name(fx) == "celu":
        alpha = float(argument(fx, 1, "alpha", 1.0))
        lower = p("mul", p("expm1", p("mul", x, 1 / alpha)), alpha, hint="lower")
        return p("where", p("gt", x, 0.0, dtype="bool"), x, lower, hint="")
    eps = argument(fx, 1, "eps", None)
    if eps is not None:
        x = p("minimum", p("maximum", x, float(eps)), 1 - float(eps))
    return p("log", p("div", x, p("sub", 1.0, x)), hint="")


@rule("addcmul", "addcdiv")
def added(low: Lowering, fx: Any) -> str | None:
    found = _tensors(low, fx, 3)
    if found is None:
        return None
    start, a, b = found
    factor = fx.kwargs.get("value", 1)
    term = low.pointwise(operator_name(fx)[4:7], a, b)
    if factor != 1:
        term = low.pointwise("mul", term, factor, hint="term")
    return low.pointwise("add", start, term, hint="")


@rule("lerp")
def lerp(low: Lowering, fx: Any) -> str | None:
    """Lower `torch.lerp` to a + w (b - a), or for w of at least 1/2 to b - (1 - w) (b - a), as
    torch computes it."""
    found, weight = _tensors(low, fx, 2), operand(low, fx.args[2])
    if found is None or weight is None:
        return None
    start, end = found
    p = low.pointwise
    gap = p("sub", end, start, hint="gap")
    if isinstance(weight, str):
        near = p("add", start, p("mul", gap, weight), hint="near")
        far = p("sub", end, p("mul", gap, p("sub", 1.0, weight)), hint="far")
        small = p("lt", p("abs", weight), 0.5, dtype="bool")
        return p("where", small, near, far, hint="")
    if abs(weight) < 0.5:
        return low.pointwise("add", start, low.pointwise("mul", gap, weight), hint="")
    return low.pointwise("sub", end, low.pointwise("mul", gap, 1 - weight), hint="")


@rule("fmax", "fmin", "logaddexp")
def of_two(low: Lowering, fx: Any) -> str | None:
    found = _tensors(low, fx, 2)
    if found is None:
        return None
    a, b = found
    p, name = low.pointwise, operator_name(fx)
    if name == "logaddexp":
        tail = p("log1p", p("exp", p("neg", p("abs", p("sub", a, b)))))
        usual = p("add", p("maximum", a, b), tail, hint="usual")
        # The difference of equal infinities is NaN.
        double = p("add", a, math.log(2), hint="double")
        return p("where", p("eq", a, b, dtype="bool"), double, usual, hint="")
    both = p("maximum" if name == "fmax" else "minimum", a, b)
    without_a = p("where", p("ne", a, a, dtype="bool"), b, both)
    return p("where", p("ne", b, b, dtype="bool"), a, without_a, hint="")


@rule("glu")
def glu(low: Lowering, fx: Any) -> str | None:
    found, dim = _tensors(low, fx, 1), argument(fx, 1, "dim", -1)
    if found is None:
        return None
    half = low.shape(found[0])[dim] // 2
    value, gate = (narrowed(low, found[0], dim, start, start + half) for start in (0, half))
    return low.pointwise("mul", value, low.pointwise("sigmoid", gate), hint="")


@rule("diff")
def diff(low: Lowering, fx: Any) -> str | None:
    """Lower `torch.diff` of order 1 without the arguments `prepend` and `append`."""
    found, dim = _tensors(low, fx, 1), argument(fx, 2, "dim", -1)
    ends = (argument(fx, 3, "prepend"), argument(fx, 4, "append"))
    if found is None or argument(fx, 1, "n", 1) != 1 or ends != (None, None):
        return None
    count = low.shape(found[0])[dim]
    if count < 2:
        return None
    later, sooner = (narrowed(low, found[0], dim, k, count - 1 + k) for k in (1, 0))
    return low.pointwise("sub", later, sooner, hint="")


@rule("var_mean", "std_mean", "aminmax")
def pair(low: Lowering, fx: Any) -> str | None:
    """Lower operators with two results (aminmax, var_mean): both are reductions of the same
    tensor."""
    found, dims = _tensors_of_results(low, fx), argument(fx, 1, "dim")
    if operator_name(fx) == "aminmax":
        dims, keep = fx.kwargs.get("dim", dims), bool(fx.kwargs.get("keepdim", False))
        dims = list(range(len(low.shape(found)))) if found and dims is None else [dims]
        names = [low.reduce(name, found, dims, keep) for name in ("amin", "amax")] if found else []
    else:
        var = variance(low, fx) if found and isinstance(dims, list | tuple) else None
        keep = bool(fx.kwargs.get("keepdim", fx.args[3] if len(fx.args) > 3 else False))
        names = [var, low.mean(found, dims, keep)] if var and found else []
    if not names:
        return None
    low.multiple[fx.name] = tuple(names)
    return names[0]


def _tensors_of_results(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    return x if isinstance(x, str) and floating(fx.args[0]) and low.shape(x) else None


@rule("nansum")
def nansum(low: Lowering, fx: Any) -> str | None:
    found = _tensors(low, fx, 1)
    if found is None or not low.shape(found[0]):
        return None
    (x,) = found
    dims = argument(fx, 1, "dim", None) or list(range(len(low.shape(x))))
    number = low.pointwise("where", low.pointwise("ne", x, x, dtype="bool"), 0.0, x, hint="number")
    return low.reduce("sum", number, dims, bool(argument(fx, 2, "keepdim", False)))


@rule("hinge_embedding_loss", "soft_margin_loss")
def sided(low: Lowering, fx: Any) -> str | None:
    """Lower losses of a value and a target of 1 or -1 (soft margin, hinge embedding). The code
    calls the target `side`."""
    found = _tensors(low, fx, 2)
    if found is None:
        return None
    x, side = found
    p = low.pointwise
    if operator_name(fx) == "soft_margin_loss":
        term = p("log1p", p("exp", p("neg", p("mul", side, x))), hint="term")
        return reduced(low, term, argument(fx, 2, "reduction", MEAN))
    margin = float(argument(fx, 2, "margin", 1.0))
    apart = p("maximum", p("sub", margin, x, hint="slack"), 0.0)
    # torch adds two terms: the first counts unless the side is 1, the second unless it is -1.
    of_apart = p("where", p("ne", side, 1.0, dtype="bool"), apart, 0.0)
    of_near = p("where", p("ne", side, -1.0, dtype="bool"), x, 0.0)
    term = p("add", of_apart, of_near, hint="term")
    return reduced(low, term, argument(fx, 3, "reduction", MEAN))


@rule("margin_ranking_loss")
def margin_ranking(low: Lowering, fx: Any) -> str | None:
    """Lower the margin ranking loss to max(0, margin - side * (x - y)), where `side` is the
    target."""
    found = _tensors(low, fx, 3)
    if found is None:
        return None
    x, y, side = found
    lead = low.pointwise("mul", side, low.pointwise("sub", x, y, hint="gap"), hint="lead")
    slack = low.pointwise("sub", float(argument(fx, 3, "margin", 0.0)), lead, hint="slack")
    term = low.pointwise("maximum", slack, 0.0, hint="term")
    return reduced(low, term, argument(fx, 4, "reduction", MEAN))


@rule("poisson_nll_loss")
def poisson_nll(low: Lowering, fx: Any) -> str | None:
    """Lower the Poisson loss of logarithmic rates x and targets y, without Stirling's term: exp(x)
    - y x."""
    found = _tensors(low, fx, 2)
    if found is None or not argument(fx, 2, "log_input") or argument(fx, 3, "full"):
        return None
    x, y = found
    cross = low.pointwise("mul", y, x, hint="cross")
    term = low.pointwise("sub", low.pointwise("exp", x), cross, hint="term")
    return reduced(low, term, argument(fx, 5, "reduction", MEAN))


@rule("binary_cross_entropy")
def bce(low: Lowering, fx: Any) -> str | None:
    """Lower the binary cross entropy to (y - 1) max(log(1 - x), -100) - y max(log x, -100), with
    torch's limit of -100."""
    found = _tensors(low, fx, 2)
    if found is None or argument(fx, 2, "weight") is not None:
        return None
    x, y = found
    p = low.pointwise
    of_one = p("maximum", p("log", x), -100.0, hint="of_one")
    of_zero = p("maximum", p("log1p", p("neg", x)), -100.0, hint="of_zero")
    left = p("mul", p("sub", y, 1.0), of_zero, hint="left")
    term = p("sub", left, p("mul", y, of_one), hint="term")
    return reduced(low, term, argument(fx, 3, "reduction", MEAN))


@rule("pairwise_distance")
def pairwise_distance(low: Lowering, fx: Any) -> str | None:
    """Lower `pairwise_distance` for p = 2: the norm of x - y + eps along the last dimension."""
    found = _tensors(low, fx, 2)
    if found is None or argument(fx, 2, "p", 2.0) != 2:
        return None
    if low.shape(found[0]) != low.shape(found[1]) or not low.shape(found[0]):
        return None
    gap = low.pointwise("sub", *found, hint="difference")
    gap = low.pointwise("add", gap, float(argument(fx, 3, "eps", 1e-6)), hint="gap")
    keep = bool(argument(fx, 4, "keepdim", False))
    total = low.reduce("sum", low.pointwise("mul", gap, gap, hint="square"), [-1], keep)
    return low.pointwise("sqrt", total, hint="")
