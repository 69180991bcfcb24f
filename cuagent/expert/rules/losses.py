"""Lower losses to a pointwise term and a mean or sum over all elements."""

from __future__ import annotations

from typing import Any

from cuagent.expert.graph.lowering import Lowering, argument, floating, operand, rule

NONE, MEAN, SUM = 0, 1, 2


def reduced(low: Lowering, term: str, reduction: int) -> str:
    """Apply a loss's reduction (none, mean or sum) to `term`."""
    dims = list(range(len(low.shape(term))))
    if reduction == NONE or not dims:
        return term
    if reduction == MEAN:
        return low.mean(term, dims, False)
    return low.reduce("sum", term, dims, False)


def _pair(low: Lowering, fx: Any) -> tuple[str, str] | None:
    a, b = operand(low, fx.args[0]), operand(low, fx.args[1])
    ok = isinstance(a, str) and isinstance(b, str) and floating(fx) and floating(fx.args[0])
    return (a, b) if ok else None  # type: ignore[return-value]


@rule("mse_loss", "l1_loss")
def difference_loss(low: Lowering, fx: Any) -> str | None:
    pair = _pair(low, fx)
    if pair is None:
        return None
    d = low.pointwise("sub", *pair, hint="difference")
    term = (
        low.pointwise("mul", d, d, hint="square")
        if "mse" in str(fx.target)
        else low.pointwise("abs", d)
    )
    return reduced(low, term, argument(fx, 2, "reduction", MEAN))


@rule("huber_loss", "smooth_l1_loss")
def huber(low: Lowering, fx: Any) -> str | None:
    pair, width = _pair(low, fx), float(argument(fx, 3, "delta", argument(fx, 3, "beta", 1.0)))
    if pair is None or width <= 0:
        return None
    gap = low.pointwise("abs", low.pointwise("sub", *pair, hint="difference"), hint="gap")
    inner = low.pointwise("mul", low.pointwise("mul", gap, 0.5, hint="half"), gap, hint="inner")
    outer = low.pointwise(
        "mul", low.pointwise("sub", gap, 0.5 * width, hint="past"), width, hint="outer"
    )
    term = low.pointwise(
        "where",
        low.pointwise("lt", gap, width, hint="near", dtype="bool"),
        inner,
        outer,
        hint="term",
    )
    if "smooth" in str(fx.target) and width != 1:
        term = low.pointwise("mul", term, 1 / width, hint="per_width")
    return reduced(low, term, argument(fx, 2, "reduction", MEAN))


@rule("kl_div")
def kl_div(low: Lowering, fx: Any) -> str | None:
    """Lower to target * (log target - input), which is 0 if the target is 0."""
    pair = _pair(low, fx)
    if pair is None:
        return None
    given, target = pair
    if argument(fx, 3, "log_target", False):
        term = low.pointwise(
            "mul",
            low.pointwise("exp", target),
            low.pointwise("sub", target, given, hint="gap"),
            hint="term",
        )
    else:
        entropy = low.pointwise("xlogx", target, hint="entropy")
        term = low.pointwise(
            "sub", entropy, low.pointwise("mul", target, given, hint="cross"), hint="term"
        )
    return reduced(low, term, argument(fx, 2, "reduction", MEAN))


@rule("binary_cross_entropy_with_logits")
def bce_with_logits(low: Lowering, fx: Any) -> str | None:
    """Lower to max(x, 0) - x * y + log(1 + exp(-|x|))."""
    pair = _pair(low, fx)
    if (
        pair is None
        or argument(fx, 2, "weight") is not None
        or argument(fx, 3, "pos_weight") is not None
    ):
        return None
    x, y = pair
    linear = low.pointwise(
        "sub", low.pointwise("relu", x), low.pointwise("mul", x, y, hint="xy"), hint="linear"
    )
    tail = low.pointwise(
        "log1p", low.pointwise("exp", low.pointwise("neg", low.pointwise("abs", x)))
    )
    return reduced(
        low, low.pointwise("add", linear, tail, hint="term"), argument(fx, 4, "reduction", MEAN)
    )


@rule("cross_entropy_loss")
def cross_entropy(low: Lowering, fx: Any) -> str | None:
    """Lower rows of logits and class labels to logsumexp minus the picked logit.

    Rows with the ignored label count neither in the sum nor in the mean.
    """
    x, labels = operand(low, fx.args[0]), operand(low, fx.args[1])
    if (
        not isinstance(x, str)
        or not isinstance(labels, str)
        or argument(fx, 2, "weight") is not None
    ):
        return None
    if (
        low.by_name[labels].dtype != "int64"
        or len(low.shape(x)) != 2
        or argument(fx, 5, "label_smoothing", 0.0)
    ):
        return None
    ignore = argument(fx, 4, "ignore_index", -100)
    rows = low.shape(x)[0]
    top = low.reduce("max", x, [1], True)
    powers = low.pointwise("exp", low.pointwise("sub", x, top, hint="shifted"))
    log_total = low.pointwise("log", low.reduce("sum", powers, [1], True))
    log_sum = low.view(low.pointwise("add", log_total, top, hint="logsumexp"), (rows,), "row")
    picked = low.pick(x, labels)
    loss = low.pointwise("sub", log_sum, picked, hint="loss")
    counted = low.pointwise("ne", labels, ignore, hint="counted", dtype="bool")
    counted_loss = low.pointwise("where", counted, loss, 0.0, hint="counted_loss")
    reduction = argument(fx, 3, "reduction", MEAN)
    if reduction != MEAN:
        return reduced(low, counted_loss, reduction)
    # Repeat this node, because the count is computed in another kernel than the rows.
    counted = low.pointwise("ne", labels, ignore, hint="counted", dtype="bool")
    ones = low.pointwise("where", counted, 1.0, 0.0, hint="one")
    total, count = (
        low.reduce("sum", counted_loss, [0], False, "total"),
        low.reduce("sum", ones, [0], False, "count"),
    )
    return low.pointwise("div", total, count, hint="mean")


@rule("triplet_margin_loss")
def triplet_margin(low: Lowering, fx: Any) -> str | None:
    """Lower to max(|a - p + eps| - |a - n + eps| + margin, 0), for p = 2 and swap=False."""
    names = [operand(low, arg) for arg in fx.args[:3]]
    margin, p = argument(fx, 3, "margin", 1.0), argument(fx, 4, "p", 2.0)
    eps, swap = argument(fx, 5, "eps", 1e-6), argument(fx, 6, "swap", False)
    shapes = {low.shape(name) for name in names if isinstance(name, str)}
    if p != 2 or swap or len(shapes) != 1 or not all(isinstance(n, str) for n in names):
        return None
    distances = []
    for other, side in ((names[1], "near"), (names[2], "far")):
        gap = low.pointwise("sub", names[0], other, hint=f"{side}_difference")  # type: ignore[arg-type]
        gap = low.pointwise("add", gap, eps, hint=f"{side}_gap")
        total = low.reduce(
            "sum", low.pointwise("mul", gap, gap, hint=f"{side}_square"), [-1], False
        )
        distances.append(low.pointwise("sqrt", total, hint=side))
    slack = low.pointwise(
        "add", low.pointwise("sub", *distances, hint="slack"), margin, hint="late"
    )
    return reduced(
        low, low.pointwise("maximum", slack, 0.0, hint="term"), argument(fx, 7, "reduction", MEAN)
    )
