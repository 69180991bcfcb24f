"""Lower operators that repeat, reverse, roll, overlap, pad or cut out elements of a tensor.

All are reads with other strides, also negative ones. Padding by reflection, repetition or wrapping
is a choice by index among such reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.graph.graph import Kind, Operand, Shape
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    rule,
    shape_of,
)
from cuagent.expert.rules.joins import cost_of, in_window, joined, windowed, within
from cuagent.expert.rules.views import LAYERS, from_memory, layout, narrowed, strided, viewed
from cuagent.expert.streaming.stages import EXPENSIVE


@rule("flip")
def flip(low: Lowering, fx: Any) -> str | None:
    x = operand(low, fx.args[0])
    if not isinstance(x, str) or not low.shape(x):
        return None
    return flipped(low, x, [d % len(low.shape(x)) for d in fx.args[1]])


def flipped(low: Lowering, x: str, dims: list[int]) -> str:
    """Return the elements in reverse order along some dimensions."""
    shape, strides = layout(low, x)
    turned = tuple(-s if d in dims else s for d, s in enumerate(strides))
    offset = sum(strides[d] * (shape[d] - 1) for d in dims)
    return strided(low, x, f"{{0}}.flip({sorted(dims)})", shape, turned, offset)


@rule("unfold")
def unfold(low: Lowering, fx: Any) -> str | None:
    """Lower the overlapping windows of a dimension, as a new last dimension."""
    x = operand(low, fx.args[0])
    dim, size, step = fx.args[1:4]
    if not isinstance(x, str) or not low.shape(x):
        return None
    shape, strides = layout(low, x)
    dim %= len(shape)
    moved = (*strides[:dim], strides[dim] * step, *strides[dim + 1 :], strides[dim])
    text = f"{{0}}.unfold({dim}, {size}, {step})"
    return strided(low, x, text, shape_of(fx), moved, 0)


@rule("diagonal")
def diagonal(low: Lowering, fx: Any) -> str | None:
    x, above = operand(low, fx.args[0]), argument(fx, 1, "offset", 0)
    first, second = argument(fx, 2, "dim1", 0), argument(fx, 3, "dim2", 1)
    if not isinstance(x, str):
        return None
    shape, strides = layout(low, x)
    a, b = first % len(shape), second % len(shape)
    kept = tuple(s for d, s in enumerate(strides) if d not in (a, b))
    start = strides[b] * above if above >= 0 else -strides[a] * above
    text = f"{{0}}.diagonal({above}, {a}, {b})"
    return strided(low, x, text, shape_of(fx), (*kept, strides[a] + strides[b]), start)


@rule("repeat")
def repeat(low: Lowering, fx: Any) -> str | None:
    """Lower to a copy of a view that is expanded along new dimensions, in which they are merged."""
    x = operand(low, fx.args[0])
    if not isinstance(x, str) or not floating(fx):
        return None
    counts = list(fx.args[1])
    extra = len(counts) - len(low.shape(x))
    sizes = [*[1] * extra, *low.shape(x)]
    apart = tuple(n for pair in zip(counts, sizes, strict=True) for n in pair)
    single = tuple(n for size in sizes for n in (1, size))
    return _expanded(low, x, single, apart, shape_of(fx))


@rule("repeat_interleave")
def repeat_interleave(low: Lowering, fx: Any) -> str | None:
    x, count, dim = operand(low, fx.args[0]), fx.args[1], argument(fx, 2, "dim")
    if not isinstance(x, str) or not floating(fx) or not isinstance(count, int):
        return None
    if dim is None or not low.shape(x):
        return None
    shape = low.shape(x)
    dim = dim % len(shape) + 1
    single, apart = ((*shape[:dim], n, *shape[dim:]) for n in (1, count))
    return _expanded(low, x, single, apart, shape_of(fx))


def _expanded(
    low: Lowering, x: str, single: tuple[int, ...], apart: tuple[int, ...], shape: tuple[int, ...]
) -> str | None:
    """Return `x` with the shape `single`, expanded to `apart` and copied to `shape`."""
    raised = viewed(low, x, single)
    if raised is None:
        return None
    if single == apart:
        return viewed(low, raised, shape)
    _, strides = layout(low, raised)
    steps = tuple(
        0 if n > 1 and m == 1 else s for n, m, s in zip(apart, single, strides, strict=True)
    )
    spread = strided(low, raised, f"{{0}}.expand({list(apart)})", apart, steps, 0)
    return low.view(low.pointwise("cast", spread, hint="copies", dtype=low.by_name[x].dtype), shape)


@rule("constant_pad_nd", "pad")
def pad(low: Lowering, fx: Any) -> str | None:
    x, pads = operand(low, fx.args[0]), argument(fx, 1, "pad")
    mode, constant = argument(fx, 2, "mode", "constant"), argument(fx, 3, "value")
    if "constant" in str(fx.target):
        mode, constant = "constant", argument(fx, 2, "value", 0)
    known = floating(fx) or dtype_of(fx) == "bool"
    if not isinstance(x, str) or not known or not low.shape(x):
        return None
    if mode != "constant":
        return padded(low, x, list(pads), mode) if floating(fx) else None
    # Other readers need an expensive value in memory anyway, and the kernel of a layer stores its
    # result with the operations that follow.
    layers, shared = _layers(low, x), len(fx.args[0].users) > 1
    stored = layers > 1 or (shared and (layers > 0 or cost_of(low, x) >= EXPENSIVE))
    shape = shape_of(fx)
    if min(pads) < 0:
        x = _cropped(low, x, pads, from_memory if stored else narrowed)
        if low.shape(x) == shape:
            return low.pointwise("cast", x, hint="", dtype=dtype_of(fx))
    value = x
    sides = [(len(shape) - 1 - k, max(pads[2 * k], 0)) for k in range(len(pads) // 2)]
    changed = [(dim, before) for dim, before in sides if low.shape(x)[dim] != shape[dim]]
    for dim, before in changed:
        value = (in_window if stored else windowed)(low, value, dim, before, shape[dim])
    for k, (dim, before) in enumerate(changed):
        inside = within(low, dim, before, before + low.shape(x)[dim], shape)
        hint = "" if k == len(changed) - 1 else "padded"
        outside = float(constant or 0) if floating(fx) else int(bool(constant))
        dtype = "float32" if floating(fx) else "bool"
        value = low.pointwise("where", inside, value, outside, hint=hint, dtype=dtype)
    return value


def _layers(low: Lowering, name: str) -> int:
    """Return the number of results of convolutions and products from which elementwise operations
    compute a value."""
    seen, left = {name}, [low.by_name[name]]
    while left:
        node = left.pop()
        if node.kind is Kind.POINTWISE:
            left += [low.by_name[arg] for arg in {*node.inputs} - seen]
            seen |= {*node.inputs}
    return sum(low.by_name[found].op.startswith(LAYERS) for found in seen)


def _cropped(low: Lowering, x: str, pads: Sequence[int], cut_out: Callable[..., str]) -> str:
    """Return the elements of `x` that a padding keeps where some of its sides are negative."""
    shape = low.shape(x)
    for k in range(len(pads) // 2):
        dim, (before, after) = len(shape) - 1 - k, pads[2 * k : 2 * k + 2]
        if min(before, after) < 0:
            x = cut_out(low, x, dim, max(-before, 0), shape[dim] + min(after, 0))
    return x


MOST_PADDED = 2
"""Largest number of dimensions along which a tensor is padded by its own elements."""


def padded(low: Lowering, x: str, pads: list[int], mode: str) -> str | None:
    """Return a tensor padded by its own elements; None for padding longer than they are, and for
    more than two padded dimensions, whose 27 parts would be as many conditions or kernels."""
    rank = len(low.shape(x))
    if sum(any(pads[k : k + 2]) for k in range(0, len(pads), 2)) > MOST_PADDED:
        return None
    for k in range(len(pads) // 2):
        dim, before, after = rank - 1 - k, pads[2 * k], pads[2 * k + 1]
        size = low.shape(x)[dim]
        if min(before, after) < 0 or max(before, after) >= size or _chooses(low, x, dim):
            return None
        parts = [_border(low, x, dim, before, mode, first=True)] if before else []
        parts.append(x)
        parts += [_border(low, x, dim, after, mode, first=False)] if after else []
        if len(parts) > 1:
            shape = list(low.shape(x))
            shape[dim] += before + after
            x = joined(low, parts, dim, tuple(shape))
    return x


CONDITIONS = (Kind.INSIDE, Kind.WINDOW, Kind.INDEX)


def _chooses(low: Lowering, name: str, dim: int) -> bool:
    """Return True if a value that is computed again depends on its index along `dim`."""
    node = low.by_name[name]
    if node.kind in CONDITIONS and node.dims == (dim,):
        return True
    if node.kind is not Kind.POINTWISE and node.kind is not Kind.WINDOW:
        return False
    axes = [(arg, dim - len(node.shape) + len(low.shape(arg))) for arg in node.inputs]
    return any(_chooses(low, arg, axis) for arg, axis in axes if axis >= 0)


def _border(low: Lowering, x: str, dim: int, count: int, mode: str, *, first: bool) -> str:
    """Return the elements that padding adds before the first element, or behind the last one."""
    size = low.shape(x)[dim]
    start = {"reflect": 1, "circular": size - count, "replicate": 0}[mode]
    if not first:
        start = {"reflect": size - 1 - count, "circular": 0, "replicate": size - 1}[mode]
    return _range(low, x, dim, start, count, mode)


def _range(low: Lowering, name: str, dim: int, start: int, count: int, mode: str) -> str:
    """Return `count` elements from `start` on along `dim`: in order, in reverse, or the first one
    repeated.

    An elementwise value is computed again from its operands, so that nothing is stored.
    """
    node = low.by_name[name]
    if dim < 0 or node.shape[dim] == 1 or node.kind in (Kind.INSIDE, Kind.INDEX):
        return name
    if node.kind not in (Kind.POINTWISE, Kind.WINDOW):
        part = narrowed(low, name, dim, start, start + (1 if mode == "replicate" else count))
        if mode == "reflect":
            return flipped(low, part, [dim])
        return _spread(low, part, dim, count) if mode == "replicate" else part
    args: list[Operand] = [
        _range(low, arg, dim - len(node.shape) + len(low.shape(arg)), start, count, mode)
        if isinstance(arg, str)
        else arg
        for arg in node.args
    ]
    shape = (*node.shape[:dim], count, *node.shape[dim + 1 :])
    word = low.unique_name("border")
    return low.add(replace(node, name=word, args=tuple(args), shape=shape, origin=low.origin))


def _spread(low: Lowering, name: str, dim: int, count: int) -> str:
    """Return the one element along `dim` `count` times."""
    shape, strides = layout(low, name)
    wide = (*shape[:dim], count, *shape[dim + 1 :])
    steps = (*strides[:dim], 0, *strides[dim + 1 :])
    return strided(low, name, f"{{0}}.expand({list(wide)})", wide, steps, 0)


@rule("roll")
def roll(low: Lowering, fx: Any) -> str | None:
    x, shifts, dims = operand(low, fx.args[0]), fx.args[1], argument(fx, 2, "dims", [])
    if not isinstance(x, str) or not floating(fx) or not dims:
        return None
    shape = low.shape(x)
    moves = [(d % len(shape), s % shape[d]) for s, d in zip(shifts, dims, strict=True)]
    return _rolled(low, x, [(d, s) for d, s in moves if s], shape)


def _rolled(
    low: Lowering,
    x: str,
    moves: Sequence[tuple[int, int]],
    shape: Shape,
    pieces: tuple[tuple[int, int, int, int], ...] = (),
) -> str:
    """Add nested choices among the two pieces into which each rolled dimension is cut.

    `moves` has (dimension, shift) of the dimensions that are left. `pieces` has the dimension,
    start, end and new start of each piece that was chosen so far.
    """
    if not moves:
        # Each piece would compute an expensive value again, such as a padded image.
        again = cost_of(low, x) * 2 ** len(pieces) >= EXPENSIVE
        cut_out = from_memory if again else narrowed
        for dim, start, end, _ in pieces:
            x = cut_out(low, x, dim, start, end)
        for dim, _, _, place in pieces:
            x = windowed(low, x, dim, place, shape[dim])
        return x
    (dim, shift), *rest = moves
    cut = shape[dim] - shift
    first = _rolled(low, x, rest, shape, (*pieces, (dim, cut, shape[dim], 0)))
    second = _rolled(low, x, rest, shape, (*pieces, (dim, 0, cut, shift)))
    return low.pointwise("where", within(low, dim, 0, shift, shape), first, second, hint="rolled")
