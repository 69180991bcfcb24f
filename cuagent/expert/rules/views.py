"""Lower slices, permutations, expansions and concatenations.

A slice or a permutation becomes strides and an offset in the memory of its argument. A
concatenation becomes a choice by index among its parts, each read through a window; the elementwise
producers of a part move into the choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.graph.graph import Kind, Node, Operand, Shape, contiguous_strides, reshaped
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
from cuagent.expert.streaming.stages import COST, EXPENSIVE

MAX_PARTS = 8
"""Largest number of parts of a concatenation in one kernel."""
PRODUCTS = {"linear", "matmul", "mm", "bmm", "addmm", "conv1d", "conv2d", "conv3d", "convolution"}
"""Operators that read their arguments from memory."""


def strided(
    low: Lowering, arg: str, call: str, shape: Shape, strides: Sequence[int], offset: int
) -> str:
    """Add a strided view of `arg`. `call` is its Python expression over {0}."""
    node = low.by_name[arg]
    base, text, start = arg, call, offset
    if node.kind is Kind.STRIDED:
        base, text, start = node.inputs[0], call.replace("{0}", node.op), offset + node.offset
    name = low.unique_name("")
    return low.add(
        Node(
            name,
            Kind.STRIDED,
            text,
            (base,),
            shape,
            node.dtype,
            origin=low.origin,
            contiguous=False,
            strides=tuple(strides),
            offset=start,
        )
    )


def layout(low: Lowering, arg: str) -> tuple[Shape, tuple[int, ...]]:
    """Return shape and strides of a node in the memory of its base."""
    node = low.by_name[arg]
    return node.shape, node.strides if node.kind is Kind.STRIDED else contiguous_strides(node.shape)


def _viewed(low: Lowering, fx: Any) -> str | None:
    """Return the node of a view's argument; None if it is not a node."""
    x = operand(low, fx.args[0])
    return x if isinstance(x, str) else None


@rule("slice")
def slice_(low: Lowering, fx: Any) -> str | None:
    x = _viewed(low, fx)
    dim, start = argument(fx, 1, "dim", 0), argument(fx, 2, "start") or 0
    end, step = argument(fx, 3, "end"), argument(fx, 4, "step", 1)
    if x is None:
        return None
    return _sliced(low, x, dim, start, end, step)


def narrowed(low: Lowering, x: str, dim: int, start: int, end: int) -> str:
    """Return the slices `start` to `end` of a node along a dimension."""
    return _sliced(low, x, dim, start, end)


def _widened(low: Lowering, x: str) -> str | None:
    """Return the half-precision tensor of which `x` is a copy in float32; None if it is not one.

    A view of the copy then reads the tensor itself, and the copy need not be stored.
    """
    node = low.by_name[x]
    if node.kind is not Kind.POINTWISE or node.op != "cast" or node.dtype != "float32":
        return None
    (source,) = node.inputs
    stored = low.by_name[source].kind is not Kind.POINTWISE
    half = low.by_name[source].dtype in ("bfloat16", "float16")
    return source if stored and half and low.shape(source) == node.shape else None


def _sliced(low: Lowering, x: str, dim: int, start: int, end: int | None, step: int = 1) -> str:
    if source := _widened(low, x):
        return low.pointwise("cast", _sliced(low, source, dim, start, end, step), hint="")
    shape, strides = layout(low, x)
    dim %= len(shape)
    if step == 1 and _is_joined(low, x):
        return _part(low, x, dim, *slice(start, end).indices(shape[dim])[:2])
    first, last, _ = slice(start, end, 1).indices(shape[dim])
    count = max(0, -(-(last - first) // step))
    if count == shape[dim]:
        return x
    new_shape = (*shape[:dim], count, *shape[dim + 1 :])
    new_strides = (*strides[:dim], strides[dim] * step, *strides[dim + 1 :])
    text = f"{first}:{last}" + (f":{step}" if step > 1 else "")
    call = f"{{0}}[{', '.join([':'] * dim + [text])}]"
    return strided(low, x, call, new_shape, new_strides, first * strides[dim])


def _is_joined(low: Lowering, name: str) -> bool:
    """Return True for a `where` that chooses by index, such as a concatenation."""
    node = low.by_name[name]
    first = node.inputs[0] if node.kind is Kind.POINTWISE and node.op == "where" else name
    return first != name and low.by_name[first].kind is Kind.INSIDE


def _part(low: Lowering, name: str, dim: int, start: int, end: int) -> str:
    """Return a range of a value along `dim`, computed from ranges of its operands."""
    node, count = low.by_name[name], end - start
    if dim < 0 or node.shape[dim] in (1, count):
        return name
    shape = (*node.shape[:dim], count, *node.shape[dim + 1 :])
    moved = replace(node, name=low.unique_name("part"), shape=shape, origin=low.origin)
    if node.kind is Kind.POINTWISE:
        args = tuple(
            _part(low, a, dim - len(node.shape) + len(low.shape(a)), start, end)
            if isinstance(a, str)
            else a
            for a in node.args
        )
        return low.add(replace(moved, name=low.unique_name("part"), args=args))
    if node.kind in (Kind.INSIDE, Kind.WINDOW):
        if node.dims == (dim,):
            first, last = node.window
            return low.add(replace(moved, window=(first - start, last - start)))
        args = tuple(_part(low, str(a), dim, start, end) for a in node.args)
        return low.add(replace(moved, name=low.unique_name("part"), args=args))
    return _sliced(low, name, dim, start, end)


@rule("select")
def select(low: Lowering, fx: Any) -> str | None:
    x, dim, index = _viewed(low, fx), fx.args[1], fx.args[2]
    return None if x is None else _selected(low, x, dim, index)


def _selected(low: Lowering, x: str, dim: int, index: int) -> str:
    if source := _widened(low, x):
        return low.pointwise("cast", _selected(low, source, dim, index), hint="")
    shape, strides = layout(low, x)
    dim %= len(shape)
    index %= shape[dim]
    call = f"{{0}}[{', '.join([':'] * dim + [str(index)])}]"
    new_shape, new_strides = (v[:dim] + v[dim + 1 :] for v in (shape, strides))
    return strided(low, x, call, new_shape, new_strides, index * strides[dim])


@rule("split", "split_with_sizes", "chunk", "unbind")
def split(low: Lowering, fx: Any) -> str | None:
    """Lower each part to a slice; readers take them by `getitem`."""
    x = _viewed(low, fx)
    if x is None:
        return None
    name = str(fx.target).split(".")[1]
    dim = argument(fx, 1 if name == "unbind" else 2, "dim", 0)
    values = fx.meta["val"]
    starts, parts = 0, []
    for k, value in enumerate(values):
        if name == "unbind":
            parts.append(_selected(low, x, dim, k))
            continue
        count = int(value.shape[dim])
        parts.append(_sliced(low, x, dim, starts, starts + count))
        starts += count
    low.multiple[fx.name] = tuple(parts)
    return parts[0]


@rule("permute", "transpose", "t")
def permute(low: Lowering, fx: Any) -> str | None:
    x = _viewed(low, fx)
    if x is None:
        return None
    rank, order = len(low.shape(x)), list(range(len(low.shape(x))))
    match str(fx.target).split(".")[1]:
        case "permute":
            order = [d % rank for d in fx.args[1]]
        case "transpose":
            a, b = (d % rank for d in fx.args[1:3])
            order[a], order[b] = order[b], order[a]
        case _:
            order.reverse()
    if order == list(range(rank)):
        return x
    if source := _widened(low, x):
        return low.pointwise("cast", _permuted(low, source, order), hint="")
    return _permuted(low, x, order)


def _permuted(low: Lowering, x: str, order: Sequence[int]) -> str:
    shape, strides = layout(low, x)
    new_shape, new_strides = (tuple(v[d] for d in order) for v in (shape, strides))
    return strided(low, x, f"{{0}}.permute({list(order)})", new_shape, new_strides, 0)


@rule("expand")
def expand(low: Lowering, fx: Any) -> str | None:
    x = _viewed(low, fx)
    if x is None:
        return None
    (shape, strides), new_shape = layout(low, x), shape_of(fx)
    missing = len(new_shape) - len(shape)
    padded = (1,) * missing + shape
    if padded == new_shape:
        return low.view(x, new_shape, "") if missing else x
    steps = (0,) * missing + strides
    new_strides = [
        0 if old == 1 and new > 1 else s
        for old, new, s in zip(padded, new_shape, steps, strict=True)
    ]
    return strided(low, x, f"{{0}}.expand({list(new_shape)})", new_shape, new_strides, 0)


@rule("view", "reshape", "_unsafe_view", "flatten", "unsqueeze", "squeeze", "unflatten")
def view(low: Lowering, fx: Any) -> str | None:
    """Lower to a view, or to other strides of a strided argument; None if torch would copy."""
    x, shape = _viewed(low, fx), shape_of(fx)
    if x is None:
        return None
    if low.by_name[x].kind is not Kind.STRIDED:
        flat = fx.args[0].meta["val"].is_contiguous() and fx.meta["val"].is_contiguous()
        return low.view(x, shape, "") if flat or low.layouts else None
    return viewed(low, x, shape)


def viewed(low: Lowering, x: str, shape: Shape) -> str | None:
    """Add a view, or other strides of a strided value; None if torch would copy."""
    if low.by_name[x].kind is not Kind.STRIDED:
        return low.view(x, shape)
    strides = reshaped(*layout(low, x), shape)
    if strides is None:
        return None
    return strided(low, x, f"{{0}}.view({list(shape)})", shape, strides, 0)


@rule("cat", "stack")
def cat(low: Lowering, fx: Any) -> str | None:
    parts = [operand(low, part) for part in fx.args[0]]
    names = [part for part in parts if isinstance(part, str)]
    if not floating(fx) or len(names) != len(parts) or not 2 <= len(parts) <= MAX_PARTS:
        return None
    if any(dtype_of(part) != dtype_of(fx) for part in fx.args[0]):
        return None
    shape = shape_of(fx)
    dim = argument(fx, 1, "dim", 0) % len(shape)
    if "stack" in str(fx.target):
        names = [_raised(low, part, dim) for part in names]
    if any(len(low.shape(part)) != len(shape) for part in names):
        return None  # torch ignores empty tensors of one dimension
    stored = [_is_stored(low, *pair) for pair in zip(fx.args[0], names, strict=True)]
    return joined(low, names, dim, shape, stored)


def _raised(low: Lowering, name: str, dim: int) -> str:
    """Add a value with a new dimension of one element at `dim`.

    A choice between numbers, such as padding, is computed again from raised operands, so that it
    need not be stored.
    """
    node = low.by_name[name]
    shape = (*node.shape[:dim], 1, *node.shape[dim:])
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


def _is_stored(low: Lowering, part: Any, name: str) -> bool:
    """Return True for an expensive part that a product or convolution reads too.

    It is then stored anyway, and need not be computed twice.
    """
    others = {operator_name(user) for user in part.users}
    return bool(others & PRODUCTS) and _cost(low, name) >= EXPENSIVE


def _cost(low: Lowering, name: str) -> int:
    """Return the cost of an element computed from stored tensors; for `where`, the dearest case."""
    node = low.by_name[name]
    if node.kind is not Kind.POINTWISE:
        return 0
    costs = [_cost(low, arg) for arg in node.inputs]
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
        (_window if in_memory else windowed)(low, part, dim, start, shape[dim])
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
    return _window(low, name, dim, start, extent)


def _window(low: Lowering, name: str, dim: int, start: int, extent: int) -> str:
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
