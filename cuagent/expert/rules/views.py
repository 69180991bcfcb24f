"""Lower slices, permutations, expansions and reshapes.

They become strides and an offset in the memory of their argument. A range of a joined value is
computed from ranges of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.graph.graph import (
    Kind,
    Node,
    Operand,
    Shape,
    contiguous_strides,
    reshaped,
)
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    operand,
    rule,
    shape_of,
    target_of,
)
from cuagent.expert.graph.storage import WITHOUT_STRIDES


def strided(
    low: Lowering,
    arg: str,
    call: str,
    shape: Shape,
    strides: Sequence[int],
    offset: int,
    hint: str = "",
) -> str:
    """Add a strided view of `arg`. `call` is its Python expression over {0}.

    A permutation that undoes another one is a view of another shape. `hint`: name of an
    intermediate node; "" for the operator's result.
    """
    node = low.by_name[arg]
    base, text, start = arg, call, offset
    if node.kind is Kind.STRIDED:
        base, text, start = node.inputs[0], call.replace("{0}", node.op), offset + node.offset
        if start == 0 and _is_in_order(low.by_name[base], shape, strides):
            return low.view(base, shape, hint)
    name = low.unique_name(hint)
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


def _is_in_order(base: Node, shape: Shape, strides: Sequence[int]) -> bool:
    """Return True if a strided view has all elements of its argument, in their order."""
    steps = zip(shape, strides, contiguous_strides(shape), strict=True)
    whole = math.prod(shape) == base.size
    return whole and all(n == 1 or step == own for n, step, own in steps)


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


def from_memory(low: Lowering, x: str, dim: int, start: int, end: int) -> str:
    """Return the slices `start` to `end` of a stored value along a dimension."""
    shape, strides = layout(low, x)
    call = f"{{0}}[{', '.join([':'] * dim + [f'{start}:{end}'])}]"
    sizes = (*shape[:dim], end - start, *shape[dim + 1 :])
    return strided(low, x, call, sizes, strides, start * strides[dim])


def _widened(low: Lowering, x: str) -> str | None:
    """Return the half-precision tensor of which `x` is a copy in float32; None if it is not one.

    A view of the copy then reads the tensor itself, and the copy need not be stored.
    """
    node = low.by_name[x]
    if node.kind is not Kind.POINTWISE or node.op != "cast" or node.dtype != "float32":
        return None
    if not node.inputs:  # a number
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
    if gathered := _gathered_part(low, x, dim, index):
        return gathered
    shape, strides = layout(low, x)
    dim %= len(shape)
    index %= shape[dim]
    call = f"{{0}}[{', '.join([':'] * dim + [str(index)])}]"
    new_shape, new_strides = (v[:dim] + v[dim + 1 :] for v in (shape, strides))
    return strided(low, x, call, new_shape, new_strides, index * strides[dim])


def _gathered_part(low: Lowering, x: str, dim: int, index: int) -> str | None:
    """Return the gather by one slice of the indices of the gather `x`; None if `dim` is none of the
    indices' dimensions.

    A kernel can read the gathered elements without a copy, which it cannot from a slice of `x`.
    """
    node = low.by_name[x]
    if node.kind is not Kind.GATHER:
        return None
    table, places = node.inputs
    (first,), dim = node.dims, dim % len(node.shape)
    inside = dim - first
    indices = low.by_name[places]
    if not 0 <= inside < len(indices.shape):
        return None
    args = (table, _selected(low, places, inside, index))
    shape = (*node.shape[:dim], *node.shape[dim + 1 :])
    name = low.unique_name("")
    return low.add(replace(node, name=name, args=args, shape=shape, origin=low.origin))


@rule("split", "split_with_sizes", "chunk", "unbind")
def split(low: Lowering, fx: Any) -> str | None:
    """Lower each part to a slice; readers take them by `getitem`."""
    x = _viewed(low, fx)
    if x is None:
        return None
    name = str(fx.target).split(".")[1]
    dim = argument(fx, 1 if name == "unbind" else 2, "dim", 0)
    values = fx.meta["val"]
    computed = len(fx.args[0].users) == 1 and _is_cheap(low, x)
    starts, parts = 0, []
    for k, value in enumerate(values):
        if name == "unbind":
            parts.append(_selected(low, x, dim, k))
            continue
        count = int(value.shape[dim])
        cut = _part if computed else _sliced
        parts.append(cut(low, x, dim % len(low.shape(x)), starts, starts + count))
        starts += count
    low.multiple[fx.name] = tuple(parts)
    return parts[0]


LAYERS = ("F.linear(", "F.conv", "torch.matmul(", "torch.bmm(", "torch.mm(")
"""Starts of the texts of convolutions and products, whose kernels store their result together with
the operations that follow."""
CHEAP = frozenset({"where", "add", "sub", "mul", "cast", "neg", "maximum", "minimum"})
"""Operations that the parts of a value compute from parts of the operands."""


def _is_cheap(low: Lowering, name: str) -> bool:
    """Return True for a value that CHEAP operations compute from stored tensors, none of them a
    layer's result.

    Its parts are computed where they are read, so that the whole is not stored.
    """
    left, seen = [name], set[str]()
    while left:
        node = low.by_name[left.pop()]
        known = node.kind is not Kind.POINTWISE or (node.op in CHEAP and bool(node.inputs))
        if not known or node.kind in WITHOUT_STRIDES or node.op.startswith(LAYERS):
            return False
        new = {*node.inputs} - seen if node.kind is Kind.POINTWISE else set()
        left, seen = [*left, *new], seen | new
    return low.by_name[name].kind is Kind.POINTWISE


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
        return low.pointwise("cast", permuted_view(low, source, order), hint="")
    return permuted_view(low, x, order)


def permuted_view(low: Lowering, x: str, order: Sequence[int], hint: str = "") -> str:
    """Add a view of a node with its dimensions in the given order."""
    shape, strides = layout(low, x)
    new_shape, new_strides = (tuple(v[d] for d in order) for v in (shape, strides))
    return strided(low, x, f"{{0}}.permute({list(order)})", new_shape, new_strides, 0, hint)


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
    return viewed(low, x, shape) or _stored_for(low, fx, x)


def _stored_for(low: Lowering, fx: Any, x: str) -> str | None:
    """Return a view of a permuted elementwise result, which is computed in the view's order; None
    if something else reads it.

    torch computes elementwise operations in the order of their operands' memory, so that the view
    needs no copy there.
    """
    view, source = low.by_name[x], fx.args[0]
    node, read = low.by_name[view.inputs[0]], fx
    while source.op == "call_function" and target_of(source) in ("permute", "transpose", "t"):
        read, source = source, source.args[0]
        if len(read.users) != 1:
            return None
    computed = node.kind is Kind.POINTWISE and low.values.get(source.name) == node.name
    whole = view.size == node.size and view.offset == 0
    if not computed or len(source.users) != 1 or not whole or 1 in node.shape:
        return None
    own, args = contiguous_strides(node.shape), list[Operand]()
    order = [own.index(step) for step in view.strides if step in own]
    if sorted(order) != list(range(len(own))):
        return None
    for arg in node.args:
        if isinstance(arg, str) and low.shape(arg):
            shape = (1,) * (len(own) - len(low.shape(arg))) + low.shape(arg)
            without = low.by_name[arg].kind in WITHOUT_STRIDES
            raised = None if without else viewed(low, arg, shape)
            if raised is None:
                return None
            args.append(permuted_view(low, raised, order, "ordered"))
        else:
            args.append(arg)
    name = low.unique_name("stored")
    low.add(replace(node, name=name, args=tuple(args), shape=view.shape))
    return low.view(name, shape_of(fx), "")


def viewed(low: Lowering, x: str, shape: Shape, hint: str = "") -> str | None:
    """Add a view, or other strides of a strided value; None if torch would copy."""
    if low.by_name[x].kind is not Kind.STRIDED:
        return low.view(x, shape)
    strides = reshaped(*layout(low, x), shape)
    if strides is None:
        return None
    return strided(low, x, f"{{0}}.view({list(shape)})", shape, strides, 0, hint)


@rule("as_strided")
def as_strided(low: Lowering, fx: Any) -> str | None:
    """Lower a view of the memory of a value that is stored as it was captured."""
    x, (size, steps) = _viewed(low, fx), fx.args[1:3]
    if x is None or not all(isinstance(n, int) and n > 0 for n in (*size, *steps)):
        return None
    traced, (shape, strides) = fx.args[0].meta["val"], layout(low, x)
    node, first = low.by_name[x], traced.storage_offset()
    offset = argument(fx, 3, "storage_offset")
    start = first if offset is None else offset
    owner = low.by_name[node.inputs[0]] if node.kind is Kind.STRIDED else node
    # With all elements of its memory in the captured places, every view of it is known.
    places = zip(shape, strides, traced.stride(), strict=True)
    same = all(n == 1 or step == captured for n, step, captured in places)
    whole = node.size == owner.size and node.offset == first == 0 and min(strides, default=1) > 0
    last = start + sum((n - 1) * step for n, step in zip(size, steps, strict=True))
    if not same or not whole or start < 0 or last >= owner.size or owner.kind in WITHOUT_STRIDES:
        return None
    text = f"{{0}}.as_strided({list(size)}, {list(steps)}, {start})"
    name = low.unique_name("")
    made = Node(
        name, Kind.STRIDED, text, (owner.name,), tuple(size), node.dtype, origin=low.origin,
        contiguous=False, strides=tuple(steps), offset=start,
    )  # fmt: skip
    return low.add(made)
