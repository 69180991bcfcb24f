"""Lower operators without a rule of their own to a library node: the text of the same torch
call."""

from __future__ import annotations

import math
from typing import Any

from cuagent.expert.graph.graph import Kind, Node, Operand
from cuagent.expert.graph.lowering import Lowering, dtype_of, operator_name, shape_of
from cuagent.expert.graph.orders import CORRECTED, order_of_value


def library(low: Lowering, fx: Any, *, constant: bool = False) -> str:
    """Add the operator as a call of torch; return the node's name. Several results are a tuple to
    index.

    `constant`: the call depends on parameters alone; it is computed once and stored as a contiguous
    tensor.
    """
    args: list[Operand] = []

    def text(value: Any) -> str:
        if hasattr(value, "meta"):
            operand = low.values[value.name]
            if not isinstance(operand, str):
                return repr(operand)
            if operand not in args:
                args.append(operand)
            return f"{{{args.index(operand)}}}"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(text, value)) + "]"
        return doubled(literal(value))

    words = [text(arg) for arg in fx.args]
    words += [f"{key}={text(arg)}" for key, arg in fx.kwargs.items()]
    value = fx.meta.get("val")
    if operator_name(fx) == "getitem":
        call = f"{words[0]}[{words[1]}]"
    elif operator_name(fx) in VIEWS and hasattr(value, "shape"):
        call = f"{words[0]}.reshape({list(shape_of(fx))})"
    else:
        call = f"{_function(fx)}({', '.join(words)})"
    tensor = hasattr(value, "shape")
    if CORRECTED in fx.meta and value is not None and value.is_contiguous():
        call += ".contiguous()"
    return low.add(
        Node(
            low.origin,
            Kind.LIBRARY,
            call,
            tuple(args),
            shape_of(fx) if tensor else (),
            dtype_of(fx) if tensor else "",
            origin=low.origin,
            contiguous=not tensor or constant or _is_contiguous(fx, value),
            constant=constant,
            order=order_of_value(value) if low.layouts and tensor and not constant else (),
        )
    )


def _is_contiguous(fx: Any, value: Any) -> bool:
    """Return True if torch's result is contiguous.

    The order of the library's attention depends on the backend that it chooses, so that kernels
    read a copy of another order.
    """
    return operator_name(fx) != "scaled_dot_product_attention" and bool(value.is_contiguous())


FUNCTIONAL = {
    "layer_norm", "group_norm", "relu", "gelu", "silu", "scaled_dot_product_attention", "softplus",
}  # fmt: skip
TORCH = {
    "matmul", "mm", "bmm", "addmm", "sigmoid", "tanh", "exp", "permute", "transpose",
    "conv1d", "conv2d", "conv3d",
}  # fmt: skip
OTHER = {"linear": "torch.nn.functional.linear", "_neg_view": "torch.neg"}
"""Text of calls that differs from the operator's name.

Layer calls must differ from the form of `rules.contractions`, which the rewrites match. A kernel
reads memory, where the elements of a `_neg_view` have the other sign.
"""


VIEWS = {"view", "_unsafe_view", "reshape", "flatten", "unflatten"}
"""Operators that only change the shape. They are written as `reshape`, because `view` could fail if
the argument's layout differs from the captured one."""


def _function(fx: Any) -> str:
    name = operator_name(fx)
    if name in OTHER:
        return OTHER[name]
    if name in FUNCTIONAL and _readable(fx):
        return f"F.{name}"
    return f"torch.{name}" if name in TORCH else f"torch.ops.{fx.target}"


def _readable(fx: Any) -> bool:
    # torch.nn.functional has aten's positional order, but not the last flag (cudnn) of
    # layer_norm and group_norm.
    return operator_name(fx) not in ("layer_norm", "group_norm") or len(fx.args) <= 5


def literal(value: Any) -> str:
    """Return the Python expression of a plain value; infinities and NaN are written as
    `float('inf')`, `float('nan')`."""
    if isinstance(value, list | tuple):
        inner = "".join(f"{literal(item)}, " for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if type(value).__name__ == "device":
        return f"torch.device({str(value)!r})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    return repr(value)


def doubled(text: str) -> str:
    """Return text with braces doubled, so that `str.format` leaves them unchanged."""
    return text.replace("{", "{{").replace("}", "}}")
