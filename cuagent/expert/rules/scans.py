"""Lower cumulative sums, products and extremes, and flips.

A flip of a scan becomes a scan in the other direction, so that a reversed scan needs one pass over
memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cuagent.expert.graph.graph import Kind, Node, Scan
from cuagent.expert.graph.lowering import (
    Lowering,
    dtype_of,
    floating,
    operand,
    operator_name,
    rule,
    shape_of,
)
from cuagent.expert.rules.views import layout, strided


@rule("cumsum", "cumprod")
def scan(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    known = isinstance(x, str) and floating(fx) and floating(fx.args[0]) and low.shape(x)
    if not known or dtype_of(fx) != dtype_of(fx.args[0]):
        return None
    assert isinstance(x, str)
    op = "sum" if "cumsum" in str(fx.target) else "prod"
    dim = fx.args[1] % len(low.shape(x))
    return _scan(low, x, op, dim, Scan())


@rule("cummax", "cummin")
def extremes_so_far(low: Lowering, fx: Any) -> str | None:
    """Lower the values of cummax or cummin, if nothing reads the indices."""
    x = operand(low, fx.args[0])
    if any(operator_name(user) != "getitem" or user.args[1] for user in fx.users):
        return None
    if not isinstance(x, str) or not floating(fx.args[0]) or not low.shape(x):
        return None
    op = operator_name(fx).removeprefix("cum")
    return _scan(low, x, op, fx.args[1] % len(low.shape(x)), Scan())


def _scan(low: Lowering, x: str, op: str, dim: int, spec: Scan) -> str:
    shape, dtype = low.shape(x), low.by_name[x].dtype
    name = low.unique_name("")
    node = Node(name, Kind.SCAN, op, (x,), shape, dtype, (dim,), origin=low.origin, spec=spec)
    return low.add(node)


@rule("flip")
def flip(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    if not isinstance(x, str) or not low.shape(x):
        return None
    value = x
    for dim in fx.args[1]:
        value = _flipped(low, value, dim % len(low.shape(x)))
    if low.by_name[value].kind in (Kind.POINTWISE, Kind.SCAN):
        return value
    # torch's flip is a new tensor, not a view.
    return low.pointwise("cast", value, hint="", dtype=dtype_of(fx)) if floating(fx) else None


def _flipped(low: Lowering, name: str, dim: int) -> str:
    """Return a node with the elements of `name` reversed along `dim`. An elementwise node is
    computed from reversed operands."""
    node = low.by_name[name]
    if dim < 0 or node.shape[dim] == 1:
        return name
    match node.kind:
        case Kind.POINTWISE:
            args = tuple(
                _flipped(low, a, dim - len(node.shape) + len(low.shape(a)))
                if isinstance(a, str)
                else a
                for a in node.args
            )
            flipped = replace(node, name=low.unique_name("flipped"), args=args, origin=low.origin)
            return low.add(flipped)
        case Kind.SCAN:
            spec = Scan(not node.spec.reverse) if node.dims == (dim,) else node.spec
            return _scan(low, _flipped(low, str(node.args[0]), dim), node.op, node.dims[0], spec)
        case Kind.INSIDE | Kind.WINDOW:
            (along,), (start, end) = node.dims, node.window
            args = tuple(_flipped(low, str(a), dim) for a in node.args)
            window = (node.shape[dim] - end, node.shape[dim] - start)
            moved = replace(node, name=low.unique_name("flipped"), args=args, origin=low.origin)
            return low.add(replace(moved, window=window) if along == dim else moved)
        case Kind.INDEX:
            return low.pointwise("sub", node.shape[dim] - 1, name, hint="flipped")
    shape, strides = layout(low, name)
    steps = tuple(-s if k == dim else s for k, s in enumerate(strides))
    last = (shape[dim] - 1) * strides[dim]
    return strided(low, name, f"{{0}}.flip({dim})", shape, steps, last)


@rule("zeros_like", "ones_like", "full_like")
def filled_like(low: Lowering, fx: Any) -> str | None:
    """Lower full_like, zeros_like and ones_like to a number, which kernels use without storing a
    tensor."""
    if not floating(fx):
        return None
    value = (
        operand(low, fx.args[1]) if "full" in str(fx.target) else float("ones" in str(fx.target))
    )
    if not isinstance(value, int | float):
        return None
    name, shape = low.unique_name(""), shape_of(fx)
    return low.add(
        Node(name, Kind.POINTWISE, "cast", (float(value),), shape, dtype_of(fx), origin=low.origin)
    )
