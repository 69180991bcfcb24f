"""Lower linear layers, convolutions and products to library calls whose text has a fixed form,
which the rewrites match.

A product with a diagonal matrix becomes a scaling of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuagent.expert.einsums.contraction import Einsum
from cuagent.expert.graph.graph import Kind, Node, Operand
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    rule,
    shape_of,
    target_of,
    value_of,
)
from cuagent.expert.graph.orders import order_of_value
from cuagent.expert.rules.views import layout, narrowed, strided, viewed

MATRIX_TRANSPOSE = "{0}.mT"
"""Expression of the views with the last two dimensions exchanged that this module adds."""


@rule("linear")
def linear(low: Lowering, fx: Any) -> str | None:
    """Lower a linear layer to a library call in the form that the rewrites match."""
    x, weight, bias = (operand(low, argument(fx, k, "")) for k in range(3))
    if not isinstance(x, str) or not isinstance(weight, str) or not floating(fx):
        return None
    return contraction(low, fx, "F.linear({0}, {1})", x, weight, bias)


@rule("conv1d", "conv2d", "conv3d")
def convolution(low: Lowering, fx: Any) -> str | None:
    x, weight, bias = (operand(low, argument(fx, k, "")) for k in range(3))
    if not isinstance(x, str) or not isinstance(weight, str) or not _of_batch(low, fx, weight):
        return None
    name = str(fx.target).split(".")[1]
    words = "".join(
        f", {key}={fx.args[k]!r}"
        for k, key in ((3, "stride"), (4, "padding"), (5, "dilation"), (6, "groups"))
        if k < len(fx.args)
    )
    return contraction(low, fx, f"F.{name}({{0}}, {{1}}{words})", x, weight, bias)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(low: Lowering, fx: Any) -> str | None:
    x, weight, bias = (operand(low, argument(fx, k, "")) for k in range(3))
    if not isinstance(x, str) or not isinstance(weight, str) or not _of_batch(low, fx, weight):
        return None
    name = str(fx.target).split(".")[1]
    keys = ("stride", "padding", "output_padding", "groups", "dilation")
    words = "".join(
        f", {key}={fx.args[3 + k]!r}" for k, key in enumerate(keys[: max(len(fx.args) - 3, 0)])
    )
    return contraction(low, fx, f"F.{name}({{0}}, {{1}}{words})", x, weight, bias)


def _of_batch(low: Lowering, fx: Any, weight: str) -> bool:
    """Return True for a floating-point convolution of a batch. One of a single sample, without the
    first dimension, stays a call that no rewrite matches."""
    return floating(fx) and len(shape_of(fx)) == len(low.shape(weight))


def contraction(
    low: Lowering, fx: Any, call: str, x: str, weight: str, bias: Operand | None
) -> str:
    """Add the library call of a linear layer or a convolution, with its bias if it has one; return
    the node's name."""
    args: tuple[str, ...] = (x, weight)
    if isinstance(bias, str):
        args, call = (x, weight, bias), with_bias(call)
    contiguous = bool(fx.meta["val"].is_contiguous())
    return low.add(
        Node(
            low.origin,
            Kind.LIBRARY,
            call,
            args,
            shape_of(fx),
            dtype_of(fx),
            origin=low.origin,
            contiguous=contiguous,
            order=order_of_value(fx.meta["val"]) if low.layouts else (),
        )
    )


@rule("addmm")
def product_with_bias(low: Lowering, fx: Any) -> str | None:
    """Lower the sum of a product and a bias of its columns to a linear layer with a transposed
    weight."""
    bias, x, weight = (operand(low, arg) for arg in fx.args[:3])
    if not isinstance(bias, str) or not isinstance(x, str) or not isinstance(weight, str):
        return None
    scaled = len(fx.args) > 3 or fx.kwargs
    if scaled or not floating(fx) or low.shape(bias) != shape_of(fx)[-1:]:
        return None
    return contraction(low, fx, "F.linear({0}, {1})", x, _transposed(low, weight), bias)


MOST_TERMS = 4
"""Largest number of terms for which an element of a product is computed by elementwise operations.

Products of 3 x 3 matrices take torch 10 us a call, and points with three coordinates leave the
units for products idle.
"""


@rule("matmul", "mm", "bmm")
def product(low: Lowering, fx: Any) -> str | None:
    """Lower products of few terms to elementwise operations (CPU), diag(a) @ B to a scaling of B's
    rows, and x @ W.T to a linear layer; other products return None."""
    left, right = fx.args
    if not floating(fx):
        return None
    if few := _sum_of_few(low, fx, left, right):
        return few
    if target_of(fx) == "bmm":
        return None
    if target_of(left) in ("diag", "diag_embed"):
        return _row_scaling(low, fx, left, right)
    if target_of(right) in ("permute", "transpose", "t") and len(shape_of(right)) == 2:
        x, weight = operand(low, left), operand(low, right.args[0])
        swapped = shape_of(right) != shape_of(right.args[0]) or right.args[1:] != ([0, 1],)
        if isinstance(x, str) and isinstance(weight, str) and swapped and len(shape_of(left)) > 1:
            return contraction(low, fx, "F.linear({0}, {1})", x, weight, None)
    return None


def _sum_of_few(low: Lowering, fx: Any, left: Any, right: Any) -> str | None:
    """Add the product of two float32 matrices, or batches, as a sum of MOST_TERMS terms or less."""
    x, y = operand(low, left), operand(low, right)
    if not isinstance(x, str) or not isinstance(y, str) or value_of(fx).device.type != "cpu":
        return None
    if {dtype_of(fx), dtype_of(left), dtype_of(right)} != {"float32"}:
        return None
    count, rank = low.shape(x)[-1], min(len(low.shape(x)), len(low.shape(y)))
    if rank < 2 or not 2 <= count <= MOST_TERMS or low.layouts:
        return None
    total = ""
    for k in range(count):
        column, row = narrowed(low, x, -1, k, k + 1), narrowed(low, y, -2, k, k + 1)
        term = low.pointwise("mul", column, row, hint="term")
        total = (
            low.pointwise("add", total, term, hint="" if k == count - 1 else "sum") if k else term
        )
    return total


Labelled = tuple[str, str]
"""An operand of an einsum: (letters of its dimensions, name of its node)."""


@rule("einsum")
def einsum(low: Lowering, fx: Any) -> str | None:
    """Lower an einsum to products and elementwise operations if its operands need no copy; else to
    one library call, which a generated kernel may replace.

    No operand may repeat a letter.
    """
    equation, operands = fx.args[0], fx.args[1]
    left, arrow, result = equation.replace(" ", "").partition("->")
    words = left.split(",")
    given = [
        (word, name)
        for word, value in zip(words, operands, strict=True)
        if isinstance(name := operand(low, value), str) and len(set(word)) == len(word)
    ]
    if not arrow or not floating(fx) or "." in equation or len(given) < len(words):
        return None
    return _lowered(low, fx, given, result) or _einsum_call(low, fx, given, result)


def _lowered(low: Lowering, fx: Any, given: Sequence[Labelled], result: str) -> str | None:
    """Lower an einsum of two or three operands to a product or to elementwise operations."""
    if len(given) == 3:
        return _sum_of_three(low, fx, given, result)
    if len(given) != 2:
        return None
    (a, x), (b, y) = given
    common, summed = a[:-1], a[-1]
    if len(b) == 2 and result == common + b.replace(summed, "") and summed not in result:
        call = "torch.matmul({0}, {1})" if b[0] == summed else "F.linear({0}, {1})"
        return contraction(low, fx, call, x, y, None) if summed in b else None
    return _sum_of_products(low, fx, (a, x), (b, y), result)


def _einsum_call(low: Lowering, fx: Any, given: Sequence[Labelled], result: str) -> str | None:
    """Lower an einsum to a call of torch with its equation as `spec`."""
    if len(given) < 2:
        return None
    words = tuple(word for word, _ in given)
    names = tuple(name for _, name in given)
    places = ", ".join(f"{{{k}}}" for k in range(len(names)))
    call = f"torch.einsum('{','.join(words)}->{result}', {places})"
    contiguous = bool(value_of(fx).is_contiguous())
    return low.add(
        Node(
            low.unique_name(""),
            Kind.LIBRARY,
            call,
            names,
            shape_of(fx),
            dtype_of(fx),
            origin=low.origin,
            contiguous=contiguous,
            spec=Einsum(words, result),
            order=order_of_value(value_of(fx)) if low.layouts else (),
        )
    )


def _sum_of_three(low: Lowering, fx: Any, given: Sequence[Labelled], result: str) -> str | None:
    """Lower an einsum of three operands, one of which scales the result of the other two."""
    for k in (2, 1, 0):
        letters, name = given[k]
        if not set(letters) <= set(result):
            continue
        others = [pair for j, pair in enumerate(given) if j != k]
        scale = _spread(low, letters, name, result)
        if scale is None or set(result) - set(others[0][0] + others[1][0]):
            continue
        total = _sum_of_products(low, fx, others[0], others[1], result)
        return low.pointwise("mul", total, scale, hint="") if total else None
    return None


def _sum_of_products(
    low: Lowering, fx: Any, left: Labelled, right: Labelled, result: str
) -> str | None:
    """Lower an einsum of two operands to a matrix product, or to an elementwise product and its
    sum."""
    (a, x), (b, y) = left, right
    sizes = dict(zip(a, low.shape(x), strict=True))
    equal = all(sizes.get(c, n) == n for c, n in zip(b, low.shape(y), strict=True))
    if set(result) - set(a + b) or not equal:
        return None
    summed = [c for c in dict.fromkeys(a + b) if c not in result]
    if summed and all(sizes.get(c, 1) == 1 for c in summed):
        # A sum of one term is an elementwise product of views without that dimension.
        left, right = (_without(low, pair, summed) for pair in (left, right))
        return _sum_of_products(low, fx, left, right, result)
    if not summed or set(b) <= set(a) or set(a) <= set(b):
        letters = result if not summed else max(a, b, key=len)
        if "".join(c for c in letters if c in result) != result:
            return None
        parts = [_spread(low, word, name, letters) for word, name in (left, right)]
        if parts[0] is None or parts[1] is None:
            return None
        terms = low.pointwise("mul", parts[0], parts[1], hint="terms" if summed else "")
        dims = [letters.index(c) for c in summed]
        return low.reduce("sum", terms, dims, False) if summed else terms
    batch, ends = result[:-2], result[-2:]
    whole = len(summed) == 1 and len(ends) == 2 and batch
    # An operand without batch dimensions is shared by the whole batch.
    if not whole or a[:-2] not in (batch, "") or b[:-2] not in (batch, ""):
        return None
    if set(a[-2:]) != {ends[0], summed[0]} or set(b[-2:]) != {summed[0], ends[1]}:
        return None
    x = x if a[-1] == summed[0] else _transposed(low, x)
    y = y if b[-1] == ends[1] else _transposed(low, y)
    return contraction(low, fx, "torch.matmul({0}, {1})", x, y, None)


def _without(low: Lowering, labelled: Labelled, letters: Sequence[str]) -> Labelled:
    """Return a view of an operand without some dimensions of one element."""
    word, name = labelled
    kept = [(c, n) for c, n in zip(word, low.shape(name), strict=True) if c not in letters]
    view = viewed(low, name, tuple(n for _, n in kept))
    return "".join(c for c, _ in kept), view or name


def _spread(low: Lowering, word: str, name: str, letters: str) -> str | None:
    """Return a view of node `name` with one dimension for each letter in `letters`; None if the
    view needs a copy.

    `word`: letters of the dimensions of `name`. A letter that `word` lacks becomes a dimension of
    size 1.
    """
    sizes = dict(zip(word, low.shape(name), strict=True))
    order = [word.index(c) for c in letters if c in word]
    if len(order) < len(word):
        return None
    if order != sorted(order):
        _, strides = layout(low, name)
        shape, moved = (tuple(v[k] for k in order) for v in (low.shape(name), strides))
        name = strided(low, name, f"{{0}}.permute({order})", shape, moved, 0)
    return viewed(low, name, tuple(sizes.get(c, 1) for c in letters))


def _transposed(low: Lowering, name: str) -> str:
    """Add a view of a node with the last two dimensions exchanged; return its name."""
    (*leading, n, m), (*steps, down, across) = layout(low, name)
    return strided(
        low, name, MATRIX_TRANSPOSE, (*leading, m, n), (*steps, across, down), 0, "transposed"
    )


def _row_scaling(low: Lowering, fx: Any, left: Any, right: Any) -> str | None:
    if len(left.args) > 1 or len(shape_of(left.args[0])) != 1:
        return None
    a, b = operand(low, left.args[0]), operand(low, right)
    if not isinstance(a, str) or not isinstance(b, str) or len(low.shape(b)) != 2:
        return None
    return low.pointwise("mul", low.view(a, (low.shape(a)[0], 1), "column"), b, hint="")


def with_bias(call: str) -> str:
    """Return the text of a linear layer's or convolution's call with {2} added as its bias."""
    return call.replace("{1}", "{1}, bias={2}")
