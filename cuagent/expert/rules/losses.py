"""Lower losses to a pointwise term for each element and its mean or sum."""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.graph.graph import FLOATS
from cuagent.expert.graph.lowering import Lowering, argument, floating, operand, rule
from cuagent.expert.rules.gathers import taken
from cuagent.expert.rules.views import viewed

NONE, MEAN, SUM = 0, 1, 2


def reduced(low: Lowering, term: str, reduction: int) -> str:
    """Add a loss's reduction (none, mean or sum) of the node `term`; return the result's name."""
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
    """Lower the KL divergence loss to target * (log target - input), which is 0 where the target is
    0."""
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
    """Lower the binary cross entropy of logits to (1 - y) x - min(x, 0) + log(1 + exp(-|x|)).

    For infinite logits the result is that of torch, which computes the same.
    """
    pair = _pair(low, fx)
    if (
        pair is None
        or argument(fx, 2, "weight") is not None
        or argument(fx, 3, "pos_weight") is not None
    ):
        return None
    x, y = pair
    rest = low.pointwise("mul", low.pointwise("sub", 1.0, y, hint="rest"), x, hint="rest_of_x")
    linear = low.pointwise("sub", rest, low.pointwise("minimum", x, 0.0), hint="linear")
    tail = low.pointwise(
        "log1p", low.pointwise("exp", low.pointwise("neg", low.pointwise("abs", x)))
    )
    return reduced(
        low, low.pointwise("add", linear, tail, hint="term"), argument(fx, 4, "reduction", MEAN)
    )


@rule("cross_entropy_loss")
def cross_entropy(low: Lowering, fx: Any) -> str | None:
    """Lower the cross entropy of logits; the targets are class labels or class probabilities.

    Positions with the ignored label are left out of the sum and of the mean's divisor.
    """
    x, target, weight = (operand(low, value) for value in (*fx.args[:2], argument(fx, 2, "weight")))
    if not isinstance(x, str) or not isinstance(target, str) or not floating(fx):
        return None
    smoothing = float(argument(fx, 5, "label_smoothing", 0.0))
    shape = low.shape(x)
    if len(shape) < 2 or not floating(fx.args[0]) or isinstance(weight, float | int):
        return None
    shifted = low.pointwise("sub", x, low.reduce("max", x, [1], True), hint="shifted")
    powers = low.pointwise("exp", shifted)
    log_total = low.pointwise("log", low.reduce("sum", powers, [1], True), hint="log_total")
    reduction = argument(fx, 3, "reduction", MEAN)
    if low.by_name[target].dtype in FLOATS and low.shape(target) == shape:
        return _of_probabilities(low, shifted, log_total, target, weight, smoothing, reduction)
    if low.by_name[target].dtype != "int64" or low.shape(target) != (shape[0], *shape[2:]):
        return None
    labels = viewed(low, target, (shape[0], 1, *shape[2:]))
    if labels is None:
        return None
    loss = low.pointwise("sub", log_total, taken(low, shifted, labels, 1), hint="loss")
    smooth = None
    if smoothing:
        gaps = low.pointwise("sub", log_total, shifted, hint="gaps")
        gaps = _weighted(low, gaps, weight, len(shape))
        smooth = low.mean(gaps, [1], True, "smooth")
    return _of_labels(low, fx, loss, labels, weight, (smooth, smoothing), target)


def _weighted(low: Lowering, value: str, weight: str | None, rank: int) -> str:
    """Multiply a node by the weight of each class (along dimension 1 of `rank` dimensions). Without
    a weight, return the node."""
    if weight is None:
        return value
    column = low.view(weight, (*low.shape(weight), *(1,) * (rank - 2)), "class_weight")
    return low.pointwise("mul", value, column, hint="weighted")


def _of_probabilities(
    low: Lowering,
    shifted: str,
    log_total: str,
    target: str,
    weight: str | None,
    smoothing: float,
    reduction: int,
) -> str:
    """Return the node of the reduced loss whose targets are class probabilities."""
    shape = low.shape(shifted)
    if smoothing:
        target = low.pointwise("mul", target, 1 - smoothing, hint="kept")
        target = low.pointwise("add", target, smoothing / shape[1], hint="smoothed")
    gaps = low.pointwise("sub", log_total, shifted, hint="gaps")
    terms = low.pointwise("mul", _weighted(low, gaps, weight, len(shape)), target, hint="terms")
    loss = low.reduce("sum", terms, [1], False, "loss")
    if reduction == NONE:
        return loss
    total = low.reduce("sum", loss, list(range(len(shape) - 1)), False, "total")
    if reduction == SUM:
        return total
    return low.pointwise("div", total, shape[0] * math.prod(shape[2:]), hint="mean")


@rule("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(low: Lowering, fx: Any) -> str | None:
    """Lower the negative log-likelihood loss of log-probabilities, with class labels as targets."""
    x, target, weight = (operand(low, value) for value in (*fx.args[:2], argument(fx, 2, "weight")))
    if not isinstance(x, str) or not isinstance(target, str) or not floating(fx):
        return None
    shape = low.shape(x)
    if len(shape) < 2 or low.by_name[target].dtype != "int64" or isinstance(weight, float | int):
        return None
    labels = viewed(low, target, (shape[0], 1, *shape[2:]))
    if labels is None:
        return None
    loss = low.pointwise("neg", taken(low, x, labels, 1), hint="loss")
    return _of_labels(low, fx, loss, labels, weight, (None, 0.0), target)


def _of_labels(
    low: Lowering,
    fx: Any,
    loss: str,
    labels: str,
    weight: str | None,
    smooth: tuple[str | None, float],
    target: str,
) -> str:
    """Return the node of a reduced loss of class labels with label smoothing s: (1 - s) * loss + s
    * (mean loss over the classes).

    `smooth`: (node of that mean, s), or (None, 0). Class weights apply to both terms. The reduction
    "mean" divides by the sum of the weights of the labels that are not ignored.
    """
    ignore = argument(fx, 4, "ignore_index", -100)
    counted = low.pointwise("ne", labels, ignore, hint="counted", dtype="bool")
    if weight is not None:
        loss = low.pointwise("mul", loss, _weight_of(low, weight, labels), hint="weighted_loss")
    if smooth[0] is not None:
        loss = low.pointwise("mul", loss, 1 - smooth[1], hint="kept")
        part = low.pointwise("mul", smooth[0], smooth[1], hint="spread")
        loss = low.pointwise("add", loss, part, hint="smoothed")
    counted_loss = low.pointwise("where", counted, loss, 0.0, hint="counted_loss")
    counted_loss = low.view(counted_loss, low.shape(target), "losses")
    reduction = argument(fx, 3, "reduction", MEAN)
    if reduction != MEAN:
        return reduced(low, counted_loss, reduction)
    # Repeat this node, because the count is computed in another kernel than the rows.
    counted = low.pointwise("ne", labels, ignore, hint="counted", dtype="bool")
    one = 1.0 if weight is None else _weight_of(low, weight, labels)
    ones = low.pointwise("where", counted, one, 0.0, hint="one")
    dims = list(range(len(low.shape(target))))
    total = low.reduce("sum", counted_loss, dims, False, "total")
    count = low.reduce("sum", low.view(ones, low.shape(target), "ones"), dims, False, "count")
    return low.pointwise("div", total, count, hint="mean")


def _weight_of(low: Lowering, weight: str, labels: str) -> str:
    """Return the node with the class weight of each label."""
    shape = low.shape(labels)
    wide = low.view(weight, (1, *low.shape(weight), *(1,) * (len(shape) - 2)), "class_weight")
    return taken(low, wide, labels, 1)


@rule("cosine_embedding_loss")
def cosine_embedding(low: Lowering, fx: Any) -> str | None:
    """Lower the cosine embedding loss: 1 - cos for the target 1, max(cos - margin, 0) for -1, and 0
    for others."""
    a, b, target = (operand(low, arg) for arg in fx.args[:3])
    margin = float(argument(fx, 3, "margin", 0.0))
    if not (isinstance(a, str) and isinstance(b, str) and isinstance(target, str)):
        return None
    rows = low.shape(a)[:-1]
    if low.shape(a) != low.shape(b) or low.shape(target) != rows or not floating(fx):
        return None
    sums = []
    for left, right in ((a, b), (a, a), (b, b)):
        product = low.pointwise("mul", left, right, hint="product")
        sums.append(low.reduce("sum", product, [-1], False, "dot"))
    # torch adds this to each sum of squares.
    lengths = [low.pointwise("add", total, 1e-12, hint="squares") for total in sums[1:]]
    length = low.pointwise("sqrt", low.pointwise("mul", *lengths, hint="lengths"), hint="length")
    cosine = low.pointwise("div", sums[0], length, hint="cosine")
    near = low.pointwise("sub", 1.0, cosine, hint="near")
    far = low.pointwise("maximum", low.pointwise("sub", cosine, margin), 0.0, hint="far")
    is_near = low.pointwise("eq", target, 1, hint="is_near", dtype="bool")
    is_far = low.pointwise("eq", target, -1, hint="is_far", dtype="bool")
    term = low.pointwise("where", is_far, far, 0.0, hint="of_far")
    term = low.pointwise("where", is_near, near, term, hint="term")
    return reduced(low, term, argument(fx, 4, "reduction", MEAN))


@rule("triplet_margin_loss")
def triplet_margin(low: Lowering, fx: Any) -> str | None:
    """Lower the triplet margin loss for p = 2 and swap=False: max(|a - p + eps| - |a - n + eps| +
    margin, 0)."""
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
