"""Lower linear layers, convolutions and products to library calls in one form for the rewrites.

A product with a diagonal matrix becomes a scaling of rows.
"""

from __future__ import annotations

from typing import Any

from cuagent.expert.graph.graph import Kind, Node, Operand, contiguous_strides
from cuagent.expert.graph.layouts import order_of_value
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    rule,
    shape_of,
    target_of,
)


@rule("linear")
def linear(low: Lowering, fx: Any) -> str | None:
    """Lower to a library call in the form that rewrites match."""
    x, weight, bias = (operand(low, argument(fx, k, "")) for k in range(3))
    if not isinstance(x, str) or not isinstance(weight, str) or not floating(fx):
        return None
    return contraction(low, fx, "F.linear({0}, {1})", x, weight, bias)


@rule("conv1d", "conv2d", "conv3d")
def convolution(low: Lowering, fx: Any) -> str | None:
    x, weight, bias = (operand(low, argument(fx, k, "")) for k in range(3))
    if not isinstance(x, str) or not isinstance(weight, str) or not floating(fx):
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
    if not isinstance(x, str) or not isinstance(weight, str) or not floating(fx):
        return None
    name = str(fx.target).split(".")[1]
    keys = ("stride", "padding", "output_padding", "groups", "dilation")
    words = "".join(
        f", {key}={fx.args[3 + k]!r}" for k, key in enumerate(keys[: max(len(fx.args) - 3, 0)])
    )
    return contraction(low, fx, f"F.{name}({{0}}, {{1}}{words})", x, weight, bias)


def contraction(
    low: Lowering, fx: Any, call: str, x: str, weight: str, bias: Operand | None
) -> str:
    """Add the library call of a linear layer or a convolution, with its bias if it has one."""
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


@rule("matmul", "mm")
def product(low: Lowering, fx: Any) -> str | None:
    """Lower diag(a) @ B to a scaling of B's rows and x @ W.T to a linear layer; else None."""
    left, right = fx.args
    if not floating(fx):
        return None
    if target_of(left) in ("diag", "diag_embed"):
        return _row_scaling(low, fx, left, right)
    if target_of(right) in ("permute", "transpose", "t") and len(shape_of(right)) == 2:
        x, weight = operand(low, left), operand(low, right.args[0])
        swapped = shape_of(right) != shape_of(right.args[0]) or right.args[1:] != ([0, 1],)
        if isinstance(x, str) and isinstance(weight, str) and swapped and len(shape_of(left)) > 1:
            return contraction(low, fx, "F.linear({0}, {1})", x, weight, None)
    return None


@rule("einsum")
def einsum(low: Lowering, fx: Any) -> str | None:
    """Lower a sum over one letter to a product, if no operand needs a permutation."""
    equation, operands = fx.args[0], fx.args[1]
    left, arrow, result = equation.replace(" ", "").partition("->")
    words = left.split(",")
    if not arrow or len(words) != 2 or not floating(fx) or "." in equation:
        return None
    a, b = words
    x, y = (operand(low, value) for value in operands)
    if not isinstance(x, str) or not isinstance(y, str) or len(set(a)) + len(set(b)) < len(a + b):
        return None
    common, summed = a[:-1], a[-1]
    if len(b) == 2 and result == common + b.replace(summed, "") and summed not in result:
        call = "torch.matmul({0}, {1})" if b[0] == summed else "F.linear({0}, {1})"
        return contraction(low, fx, call, x, y, None) if summed in b else None
    batch, row = common[:-1], common[-1:]
    if not batch or len(b) != len(a) or b[: len(batch)] != batch or result[:-1] != batch + row:
        return None
    if b[len(batch) :] == summed + result[-1]:
        return contraction(low, fx, "torch.matmul({0}, {1})", x, y, None)
    if b[len(batch) :] == result[-1] + summed:
        return contraction(low, fx, "torch.matmul({0}, {1})", x, _transposed(low, y), None)
    return None


def _transposed(low: Lowering, name: str) -> str:
    """Add a view with the last two dimensions exchanged."""
    node = low.by_name[name]
    *leading, n, m = node.shape
    steps = contiguous_strides(node.shape)
    return low.add(
        Node(
            low.unique_name("transposed"),
            Kind.STRIDED,
            "{0}.mT",
            (name,),
            (*leading, m, n),
            node.dtype,
            origin=low.origin,
            strides=(*steps[:-2], steps[-1], steps[-2]),
        )
    )


def _row_scaling(low: Lowering, fx: Any, left: Any, right: Any) -> str | None:
    if len(left.args) > 1 or len(shape_of(left.args[0])) != 1:
        return None
    a, b = operand(low, left.args[0]), operand(low, right)
    if not isinstance(a, str) or not isinstance(b, str) or len(low.shape(b)) != 2:
        return None
    return low.pointwise("mul", low.view(a, (low.shape(a)[0], 1), "column"), b, hint="")


def with_bias(call: str) -> str:
    """Return the call of a linear layer or a convolution with a bias as {2}."""
    return call.replace("{1}", "{1}, bias={2}")
