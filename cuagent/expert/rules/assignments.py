"""Lower assignments to slices, `x[:, a:b] = y`, to choices by index.

torch copies the whole value and then writes the slice. A kernel reads each element once, and
computes a chain of assignments in one pass. A choice is stored in the order of the captured value's
memory, which has the order of the value that the slice was taken from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cuagent.expert.graph.graph import FLOATS, Kind, Node, Operand, Shape
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    broadcast,
    dtype_of,
    floating,
    operand,
    operator_name,
    rule,
    shape_of,
)
from cuagent.expert.graph.orders import Order, by_stride, inverse, permuted
from cuagent.expert.graph.storage import WITHOUT_STRIDES
from cuagent.expert.rules.joins import in_window, windowed, within
from cuagent.expert.rules.scatters import filled
from cuagent.expert.rules.views import layout, permuted_view, viewed

ASSIGNED = ("slice_scatter", "select_scatter")
"""Operators that put a slice back into the value that it was taken from."""


@dataclass(frozen=True)
class _Range:
    """Indices of one dimension of a value; `single` if the slice lacks that dimension."""

    dim: int
    first: int
    last: int
    single: bool


@rule("slice_scatter", "select_scatter")
def assignment(low: Lowering, fx: Any) -> str | None:
    """Lower the replacement of adjacent slices, such as in the gradient of a slice, or of one
    slice.

    An assignment to a slice of a slice is a chain of such operators, of which each puts back what
    the next one has changed. Only the new value and the whole old one are read.
    """
    base, source = fx.args[0], fx
    ranges: list[_Range] = []
    while (found := _assigned(source)) is not None and _is_slice(source.args[0], base, ranges):
        ranges.append(found)
        source = source.args[1]
    new, old = operand(low, source), filled(low, base)
    if not isinstance(new, str) or old is None or not floating(fx) or not ranges:
        return None
    return _chosen(low, fx, new, old, ranges)


@rule("copy", "fill")
def copy(low: Lowering, fx: Any) -> str | None:
    """Lower the copy of a value or a number into a slice of another value to the former itself, in
    the shape and dtype of the slice."""
    x, shape, dtype = operand(low, fx.args[1]), shape_of(fx), dtype_of(fx)
    if x is None or not floating(fx) or any(operator_name(u) not in ASSIGNED for u in fx.users):
        return None
    number = low.numbers.get(x) if isinstance(x, str) else x
    if number is not None:
        args = (float(number),)
        return low.add(Node(low.origin, Kind.POINTWISE, "cast", args, shape, dtype))
    if dtype_of(fx.args[1]) not in FLOATS or low.shape(x) != shape:
        return None
    if dtype_of(fx.args[1]) == dtype:
        return str(x)
    return low.pointwise("cast", x, hint="", dtype=dtype)


def _assigned(fx: Any) -> _Range | None:
    """Return the indices that an assignment replaces; None for any other operator."""
    if operator_name(fx) not in ASSIGNED or dtype_of(fx) != dtype_of(fx.args[1]):
        return None
    return _range(fx, shape_of(fx), argument(fx, 2, "dim", 0), 3)


def _range(fx: Any, shape: Shape, dim: int, position: int) -> _Range | None:
    """Return the indices that a slice or an assignment names from argument `position` on."""
    if not shape:
        return None
    dim %= len(shape)
    if operator_name(fx) in ("select", "select_scatter"):
        place = argument(fx, position, "index") % shape[dim]
        return _Range(dim, place, place + 1, True)
    start, end = argument(fx, position, "start"), argument(fx, position + 1, "end")
    first, last, _ = slice(start, end).indices(shape[dim])
    single_step = argument(fx, position + 2, "step", 1) == 1
    return _Range(dim, first, last, False) if single_step and first < last else None


def _is_slice(value: Any, base: Any, ranges: Sequence[_Range]) -> bool:
    """Return True if a value is the slice of `base` that the ranges name, the outermost first."""
    for expected in reversed(ranges):
        if operator_name(value) not in ("slice", "select"):
            return False
        shape, dim = shape_of(value.args[0]), argument(value, 1, "dim", 0)
        if _range(value, shape, dim, 2) != expected:
            return False
        value = value.args[0]
    return value is base


def _chosen(low: Lowering, fx: Any, new: str, old: Operand, ranges: list[_Range]) -> str | None:
    """Return the node that is `new` where all indices are in their ranges, else `old`."""
    shape = shape_of(fx)
    kept, spans, single = list(range(len(shape))), dict[int, tuple[int, int]](), list[int]()
    for found in ranges:  # the dimensions of a slice, by those of the whole value
        dim = kept[found.dim]
        if dim in spans:
            return None
        spans[dim] = (found.first, found.last)
        if found.single:
            single.append(dim)
            kept.remove(dim)
    order = _order(shape, fx.meta["val"].stride())
    if order and isinstance(old, str):
        if low.by_name[old].kind in WITHOUT_STRIDES:
            return None
        old = permuted_view(low, old, order)
    spans = {order.index(d) if order else d: span for d, span in spans.items()}
    shape = permuted(shape, order)
    value = _Placement(low, shape, order, spans, frozenset(single), old).placed(new)
    if value is None:
        return None
    for dim, (first, last) in reversed(spans.items()):
        inside = within(low, dim, first, last, shape)
        hint = "stored" if order or dim != next(iter(spans)) else ""
        value = low.pointwise("where", inside, value, old, hint=hint, dtype=dtype_of(fx))
    return permuted_view(low, str(value), inverse(order)) if order else str(value)


def _order(shape: Shape, strides: Sequence[int]) -> Order:
    """Return the order of dimensions in memory, () if that is their own order."""
    sizes = [d for d, n in enumerate(shape) if n > 1]
    moved = sorted(sizes, key=lambda d: -strides[d])
    return () if moved == sizes else by_stride(shape, strides)


@dataclass
class _Placement:
    """The place of an assigned value in the whole value."""

    low: Lowering
    shape: Shape
    """Shape of the whole value, its dimensions in the order of memory."""
    order: Order
    """Order of the whole value's dimensions in memory; () if that is their own order."""
    spans: dict[int, tuple[int, int]]
    """(first index, end) of each dimension of `shape` in which the value is a range."""
    single: frozenset[int]
    """Dimensions of the whole value that the assigned value lacks."""
    old: Operand
    """The whole value before the assignment."""
    known: dict[str, Operand | None] = field(default_factory=dict)
    """Placed values, by the names of the values."""

    def placed(self, name: str) -> Operand | None:
        """Return a value at its place in the whole value; None if an operand would be copied.

        Elementwise operations are computed again from the placed operands, so that nothing is
        stored.
        """
        if name not in self.known:
            node = self.low.by_name[name]
            is_computed = node.kind is Kind.POINTWISE
            self.known[name] = self._computed(node) if is_computed else self._stored(node)
        return self.known[name]

    def _computed(self, node: Node) -> Operand | None:
        if node.op == "cast" and not node.inputs and node.dtype in FLOATS:
            return node.args[0]  # a tensor that is filled with one number
        args: list[Operand] = []
        for arg in node.args:
            read = isinstance(arg, str) and bool(self.low.shape(arg))
            found = self.placed(str(arg)) if read else arg
            if found is None:
                return None
            args.append(found)
        shape = broadcast([self.low.shape(arg) for arg in args])
        name = self.low.unique_name("moved")
        moved = replace(node, name=name, args=tuple(args), shape=shape)
        return self.low.add(replace(moved, origin=self.low.origin))

    def _stored(self, node: Node) -> Operand | None:
        wide = self._wide(node.shape)
        if node.kind in WITHOUT_STRIDES:
            if wide != node.shape or self.order:
                return None
            moved = node.name
        else:
            raised = viewed(self.low, node.name, wide)
            if raised is None:
                return None
            moved = permuted_view(self.low, raised, self.order) if self.order else raised
        if isinstance(self.old, str) and self._is_part(moved):
            return self.old
        for dim, (first, end) in self.spans.items():
            # A kernel reads one slice where it belongs, and not for all of them.
            if self.low.shape(moved)[dim] > 1 or end == first + 1:
                moved = self._in_range(moved, dim, first)
        return moved

    def _in_range(self, name: str, dim: int, first: int) -> str:
        """Return a value that is a range of a longer one along a dimension."""
        conditions = self.low.by_name[name].kind in (Kind.INSIDE, Kind.INDEX)
        placed = windowed if conditions else in_window
        return placed(self.low, name, dim, first, self.shape[dim])

    def _wide(self, shape: Shape) -> Shape:
        """Return a shape with a dimension of one element for each that it lacks."""
        rank = len(self.shape)
        kept = [d for d in range(rank) if d not in self.single]
        sizes = dict(zip(kept[len(kept) - len(shape) :], shape, strict=True))
        return tuple(sizes.get(d, 1) for d in range(rank))

    def _is_part(self, name: str) -> bool:
        """Return True if a value is the slice of the old value in the assigned place."""
        part, whole = self.low.by_name[name], self.low.by_name[str(self.old)]
        if part.kind is not Kind.STRIDED or self._owner(part) != self._owner(whole):
            return False
        strides = layout(self.low, whole.name)[1]
        start = sum(first * strides[dim] for dim, (first, _) in self.spans.items())
        sizes = tuple(self.spans.get(d, (0, n)) for d, n in enumerate(self.shape))
        if part.shape != tuple(end - first for first, end in sizes):
            return False
        steps = zip(part.shape, part.strides, strides, strict=True)
        same = all(n == 1 or step == own for n, step, own in steps)
        return same and part.offset == whole.offset + start

    def _owner(self, node: Node) -> str:
        """Return the name of the value whose memory a value reads."""
        while node.kind in (Kind.VIEW, Kind.STRIDED):
            node = self.low.by_name[node.inputs[0]]
        return node.name
