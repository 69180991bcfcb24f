"""Lower concatenations and stacks.

A concatenation becomes a choice by index among its parts, each read through a window; the
elementwise producers of a part move into the choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.graph.graph import JOIN, Kind, Node, Operand, Shape
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
from cuagent.expert.rules.views import viewed
from cuagent.expert.streaming.stages import COST, EXPENSIVE

MAX_PARTS, MAX_GATHERED = 8, 32
"""Largest number of parts of a concatenation in one kernel; the second if most of them are looked
up, because torch then launches a slow kernel for each."""
LEAST_LARGE = 1 << 20
"""Least number of elements of a concatenation whose short computed parts are stored first."""
PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "conv1d", "conv2d", "conv3d", "convolution"}
"""Operators that read their arguments from memory."""


@rule("cat", "stack")
def cat(low: Lowering, fx: Any) -> str | None:
    parts = [operand(low, part) for part in fx.args[0]]
    names = [part for part in parts if isinstance(part, str)]
    if not floating(fx) or len(names) != len(parts) or not parts:
        return None
    if any(dtype_of(part) != dtype_of(fx) for part in fx.args[0]):
        return None
    shape = shape_of(fx)
    if len(parts) == 1:
        # A copy, as in the first layer of a dense block; its readers compute it.
        plain = "cat" in str(fx.target) and low.shape(names[0]) == shape
        return low.pointwise("cast", names[0], hint="", dtype=dtype_of(fx)) if plain else None
    dim = argument(fx, 1, "dim", 0) % len(shape)
    if _may_be_written_in_place(low, fx, names):
        return in_place(low, names, dim, shape, dtype_of(fx))
    gathered = sum(low.by_name[name].kind is Kind.GATHER for name in names)
    lookups = low.many_lookups and 2 * gathered > len(parts)
    if len(parts) > (MAX_GATHERED if lookups else MAX_PARTS):
        return None
    if "stack" in str(fx.target):
        names = [_raised(low, part, dim) for part in names]
    if any(len(low.shape(part)) != len(shape) for part in names):
        return None  # torch ignores empty tensors of one dimension
    stored = [
        _is_stored(low, *pair) or _is_read_everywhere(low, pair[1], dim, shape)
        for pair in zip(fx.args[0], names, strict=True)
    ]
    if scan := _scan_beside_zeros(low, fx, names, dim):
        inner = [scan.inputs[0] if name == scan.name else name for name in names]
        args = (joined(low, inner, dim, shape),)
        name = low.unique_name("")
        return low.add(replace(scan, name=name, args=args, shape=shape, origin=low.origin))
    return joined(low, names, dim, shape, stored)


def _scan_beside_zeros(low: Lowering, fx: Any, names: list[str], dim: int) -> Node | None:
    """Return a cumulative sum along `dim` that only this concatenation reads, if all other parts
    are zeros before its first element; else None.

    It is then the cumulative sum of the concatenation of its argument with the zeros: an exclusive
    sum is one scan.
    """
    nodes = [low.by_name[name] for name in names]
    last = nodes.pop(0 if nodes[0].kind is Kind.SCAN else -1)
    if last.kind is not Kind.SCAN or (last.op, last.dims) != ("sum", (dim,)):
        return None
    part = fx.args[0][names.index(last.name)]
    zeros = all((n.kind, n.op, n.args) == (Kind.POINTWISE, "cast", (0.0,)) for n in nodes)
    first = last.name == names[0]
    return last if zeros and last.spec.reverse == first and len(part.users) == 1 else None


def _may_be_written_in_place(low: Lowering, fx: Any, names: Sequence[str]) -> bool:
    """Return True for different parts of which a convolution computes at least one."""
    if low.joins is None or low.origin in low.joins or "stack" in str(fx.target):
        return False
    ranks = {len(low.shape(name)) for name in names}
    images = ranks == {len(shape_of(fx))} and len(shape_of(fx)) > 2
    return images and len(set(names)) == len(names) and _convolved(low, names)


def _convolved(low: Lowering, names: Sequence[str]) -> bool:
    """Return True if elementwise operations compute one of the values from a convolution's
    result, or from a concatenation of such values."""
    stack, seen = list(names), set(names)
    while stack:
        node = low.by_name[stack.pop()]
        if node.op.startswith(("F.conv", JOIN)):
            return True
        if node.kind in (Kind.POINTWISE, Kind.POOL):
            new = {a for a in node.inputs if len(low.shape(a)) == len(node.shape)} - seen
            stack += new
            seen |= new
    return False


def in_place(low: Lowering, names: Sequence[str], dim: int, shape: Shape, dtype: str) -> str:
    """Add a concatenation whose parts kernels may write into its memory."""
    words = ", ".join(f"{{{k}}}" for k in range(len(names)))
    return low.add(
        Node(
            low.origin,
            Kind.LIBRARY,
            f"{JOIN}({words}), {dim}).contiguous()",
            tuple(names),
            shape,
            dtype,
            dims=(dim,),
            origin=low.origin,
        )
    )


def _raised(low: Lowering, name: str, dim: int) -> str:
    """Add a value with a new dimension of one element at `dim`.

    A choice between numbers, such as padding, is computed again from raised operands, so that it
    need not be stored.
    """
    node = low.by_name[name]
    shape = (*node.shape[:dim], 1, *node.shape[dim:])
    if (looked_up := _raised_gather(low, node, dim, shape)) is not None:
        return looked_up
    chosen = node.kind is Kind.POINTWISE and (node.op == "where" or not node.inputs)
    chosen = chosen and node.dtype != "bool"
    if not chosen and node.kind not in (Kind.INSIDE, Kind.INDEX, Kind.WINDOW):
        return viewed(low, name, shape) or low.view(name, shape, "part")
    args: list[Operand] = []
    for arg in node.args:
        place = dim - len(node.shape) + len(low.shape(arg))
        args.append(_raised(low, arg, place) if isinstance(arg, str) and place >= 0 else arg)
    raised = replace(
        node,
        name=low.unique_name("raised"),
        args=tuple(args),
        shape=shape,
        dims=tuple(d + (d >= dim) for d in node.dims),
        origin=low.origin,
    )
    return low.add(raised)


def _raised_gather(low: Lowering, node: Node, dim: int, shape: Shape) -> str | None:
    """Add a lookup whose indices have the new dimension, so that a kernel still reads the table.

    Returns None for other values, and for a new dimension of the table.
    """
    if node.kind is not Kind.GATHER:
        return None
    table, places = node.inputs
    at, extents = dim - node.dims[0], low.shape(places)
    if not 0 <= at <= len(extents):
        return None
    raised = viewed(low, places, (*extents[:at], 1, *extents[at:]))
    if raised is None:
        return None
    name = low.unique_name("raised")
    return low.add(replace(node, name=name, args=(table, raised), shape=shape, origin=low.origin))


def _is_stored(low: Lowering, part: Any, name: str) -> bool:
    """Return True for an expensive part that a product or convolution reads too.

    It is then stored anyway, and need not be computed twice.
    """
    others = {operator_name(user) for user in part.users}
    return bool(others & PRODUCTS) and cost_of(low, name) >= EXPENSIVE


def _is_read_everywhere(low: Lowering, name: str, dim: int, shape: Shape) -> bool:
    """Return True for a computed part of one element along `dim`, such as the newest entry of a
    cache, if the concatenation is large.

    Its operands broadcast along `dim`, so that a kernel which computes the part reads them for each
    element of the whole. A stored part is read only where it belongs.
    """
    node = low.by_name[name]
    one = node.shape[dim] == 1 and dim < len(shape) - 1
    computed = node.kind is Kind.POINTWISE and bool(node.inputs)
    return one and computed and math.prod(shape) >= LEAST_LARGE


def cost_of(low: Lowering, name: str) -> int:
    """Return the cost of an element computed from stored tensors; for `where`, the dearest case."""
    node = low.by_name[name]
    if node.kind is not Kind.POINTWISE:
        return 0
    costs = [cost_of(low, arg) for arg in node.inputs]
    return COST.get(node.op, 1) + (max(costs, default=0) if node.op == "where" else sum(costs))


def joined(
    low: Lowering,
    parts: Sequence[str],
    dim: int,
    shape: Shape,
    stored: Sequence[bool] | None = None,
) -> str:
    """Add nodes that choose the part by its index along `dim`.

    `stored` is True for the parts that are in memory anyway; they are read there.
    """
    ends: list[int] = []
    for part in parts:
        ends.append((ends[-1] if ends else 0) + low.shape(part)[dim])
    starts = [0, *ends[:-1]]
    moved = [
        (in_window if in_memory else windowed)(low, part, dim, start, shape[dim])
        for part, start, in_memory in zip(
            parts, starts, stored or [False] * len(parts), strict=True
        )
    ]
    value = moved[-1]
    for k in reversed(range(len(parts) - 1)):
        inside = within(low, dim, starts[k], ends[k], shape)
        value = low.pointwise("where", inside, moved[k], value, hint="" if k == 0 else "joined")
    return value


def within(low: Lowering, dim: int, start: int, stop: int, shape: Shape) -> str:
    """Add the predicate that the index along `dim` is in [start, stop)."""
    extents = tuple(n if k == dim else 1 for k, n in enumerate(shape))
    name = low.unique_name("inside")
    return low.add(
        Node(
            name,
            Kind.INSIDE,
            "inside",
            (),
            extents,
            "bool",
            dims=(dim,),
            origin=low.origin,
            window=(start, stop),
        )
    )


def windowed(low: Lowering, name: str, dim: int, start: int, extent: int) -> str:
    """Add `name` as a part of a longer tensor: moved by `start` along `dim`, zero elsewhere.

    An elementwise node is computed again from its moved operands, so that nothing is stored.
    """
    node = low.by_name[name]
    if node.shape[dim] == extent:
        return name
    shape = (*node.shape[:dim], extent, *node.shape[dim + 1 :])
    if node.kind is Kind.INSIDE:
        first, end = node.window
        return within(low, dim, first + start, end + start, shape)
    if node.kind is Kind.INDEX:
        longer = low.add(replace(node, name=low.unique_name("index"), shape=shape))
        return low.pointwise("sub", longer, start, hint="moved")
    if node.kind is Kind.POINTWISE:
        args = []
        for arg in node.args:
            axis = dim - len(node.shape) + len(low.shape(arg))
            spans = isinstance(arg, str) and axis >= 0 and low.shape(arg)[axis] > 1
            args.append(windowed(low, str(arg), axis, start, extent) if spans else arg)
        moved = replace(
            node, name=low.unique_name("moved"), args=tuple(args), shape=shape, origin=low.origin
        )
        return low.add(moved)
    if node.kind is Kind.VIEW and (inner := _copied_under(low, node, dim)) is not None:
        source, place = inner
        moved_source = windowed(low, source, place, start, extent)
        return low.view(moved_source, shape, "moved")
    return in_window(low, name, dim, start, extent)


def _copied_under(low: Lowering, view: Node, dim: int) -> tuple[str, int] | None:
    """Return the copy of a tensor that a view reshapes, and the copy's dimension that is the view's
    dimension `dim`; None for other values.

    A kernel then reads the tensor itself, and the copy need not be stored.
    """
    source = low.by_name[view.inputs[0]]
    is_copy = source.kind is Kind.POINTWISE and source.op == "cast" and bool(source.inputs)
    if not is_copy or low.by_name[source.inputs[0]].kind is not Kind.STRIDED:
        return None
    inner = math.prod(view.shape[dim + 1 :])
    for place, size in enumerate(source.shape):
        if size == view.shape[dim] and math.prod(source.shape[place + 1 :]) == inner:
            return source.name, place
    return None


def in_window(low: Lowering, name: str, dim: int, start: int, extent: int) -> str:
    """Add `name` as a range of a longer tensor, read directly from its memory."""
    node = low.by_name[name]
    shape = (*node.shape[:dim], extent, *node.shape[dim + 1 :])
    return low.add(
        Node(
            low.unique_name("window"),
            Kind.WINDOW,
            "window",
            (name,),
            shape,
            node.dtype,
            dims=(dim,),
            origin=low.origin,
            window=(start, start + node.shape[dim]),
        )
    )
