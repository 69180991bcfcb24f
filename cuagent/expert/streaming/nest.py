"""Derive the loop nest of a group: dimensions along which each tensor access has a constant stride.

Both generators (C++ and CUDA) use it. A dimension is `reduced` if the group's reductions run over
it. Invariant: every access reads or writes element `offset + sum(index[d] * strides[d])`, for any
reshapes inside the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from cuagent.expert.graph.graph import Graph, Kind, Node, Shape, contiguous_strides
from cuagent.expert.graph.storage import NestError, source_of
from cuagent.expert.streaming.group import Group, levels_of
from cuagent.expert.streaming.places import merged_spans, overlapping


@dataclass(frozen=True)
class Dimension:
    extent: int
    reduced: bool


@dataclass(frozen=True)
class Guard:
    """The condition `low <= sum(index[d] * steps[d]) < high` on the loop indices of a nest."""

    steps: tuple[int, ...]
    low: int
    high: int


@dataclass(frozen=True)
class Access:
    """A read or write of a tensor, with one stride (in elements) per dimension of the nest."""

    tensor: str
    """Name of the node whose memory is read or written."""
    dtype: str
    strides: tuple[int, ...]
    offset: int = 0
    guards: tuple[Guard, ...] = ()
    """Conditions on the loop indices under which the element is read; otherwise the value is 0.

    An access without a tensor reads no memory. With conditions its value is whether they are true,
    without conditions the number `sum(index[d] * strides[d])`.
    """

    row: Row | None = None
    """Slice of the tensor that is read, if the access belongs to a gather; else None."""

    @property
    def is_index(self) -> bool:
        return not self.tensor and not self.guards

    def varies(self, dimension: int) -> bool:
        """Return True if the accessed element changes along `dimension` of the nest."""
        through = self.row.index.strides[dimension] if self.row else 0
        return bool(self.strides[dimension] or through)


@dataclass(frozen=True)
class Row:
    """The slice of a tensor that a gather reads, one of `extent` slices that are `stride` elements
    apart.

    `index` is the access to the slice's number. If `wraps` is True, negative numbers count from the
    end.
    """

    index: Access
    stride: int
    extent: int
    wraps: bool


@dataclass(frozen=True)
class Nest:
    group: Group
    dimensions: tuple[Dimension, ...]
    """Dimensions of the loops, outermost first."""
    reads: dict[tuple[str, str], Access]
    """Accesses that read tensors; the keys are (reading node's name, argument's name)."""
    writes: dict[str, Access]
    by_row: frozenset[str]
    """Names of the nodes with one value per row, which vary along no reduced dimension."""
    levels: dict[str, int]
    """Number of reductions on the longest path to each node (`levels_of`)."""

    @property
    def tensors_read(self) -> dict[str, str]:
        """dtype of each tensor that the nest reads, in order of first use."""
        found: dict[str, str] = {}
        for access in self.reads.values():
            for part in (access, access.row.index if access.row else None):
                found |= {part.tensor: part.dtype} if part and part.tensor else {}
        return found


SHORT_RUN = 8
"""Least distance of a border of a condition from index 0 at which a dimension is divided in two.

The condition is then constant in the inner dimension.
"""
Key = tuple[str, str] | str
"""Key of an access: (reading node, argument) for a read, name of the written node for a write."""
Axis = tuple[int, int, int]
"""(stride in the domain, extent, stride in the tensor) of one axis of an access."""


@dataclass(frozen=True)
class _Placed:
    """An access to a tensor, in terms of the group's flat domain (`group.py`)."""

    tensor: str
    dtype: str
    axes: tuple[Axis, ...]
    offset: int = 0
    guards: tuple[tuple[int, int, int, int], ...] = ()
    """(stride in the domain, extent, first index, end) of each axis with a condition."""
    index: _Placed | None = None
    """Access to the index tensor of a gather."""
    gather: tuple[int, int, bool] = (0, 0, False)
    """(elements between two slices, number of slices, True if negative indices count from the end)
    of a gather.
    """


def nest_of(group: Group, graph: Graph) -> Nest:
    """Return the loop nest of a group. Raises NestError if no nest fits all its accesses."""
    for node in group.nodes:
        if axes := overlapping(node.shape, group.places[node.name]):
            raise NestError(f"dimensions {axes} of {node.name} are one loop of the group")
    reads = {
        (node.name, arg): _read(group, graph, node, arg)
        for node in group.nodes
        if node.kind is not Kind.VIEW
        for arg in node.inputs
        if arg not in group.places
    }
    writes = {
        name: _Placed(name, graph.node(name).dtype, _written(graph, name, group.places[name]))
        for name in group.outputs
    }
    indices: dict[Key, _Placed] = {key: p.index for key, p in reads.items() if p.index}
    cuts = _cuts(group, [*reads.values(), *writes.values(), *indices.values()])
    steps = list(pairwise(cuts))[::-1]
    dims = [(inner, outer // inner) for inner, outer in steps] or [(1, 1)]
    flags = [_is_reduced(stride, group) for stride, _ in dims]
    placed: dict[Key, _Placed] = dict([*reads.items(), *writes.items()])
    strides = {key: _strides(p, dims) for key, p in placed.items()}
    through = {key: _strides(p, dims) for key, p in indices.items()}
    guards = {key: _guards(p, dims) for key, p in placed.items() if p.guards}
    steps_of_guards = [guard.steps for found in guards.values() for guard in found]
    covered = {node.name: _covers(node, group, dims) for node in group.nodes}
    regular = [*strides.values(), *through.values(), *steps_of_guards]
    keep = _collapse(dims, flags, regular, [*covered.values()])
    final = tuple(Dimension(extent, flag) for _, extent, flag in _extents(dims, flags, keep))

    def access(key: Key) -> Access:
        chosen = tuple(strides[key][k] for k in keep)
        conditions = tuple(
            replace(guard, steps=tuple(guard.steps[k] for k in keep))
            for guard in guards.get(key, ())
        )
        found, row = placed[key], None
        if found.index:
            steps = tuple(through[key][k] for k in keep)
            at = Access(found.index.tensor, found.index.dtype, steps, found.index.offset)
            row = Row(at, *found.gather)
        return Access(found.tensor, found.dtype, chosen, found.offset, conditions, row)

    by_row = frozenset(
        name
        for name, over in covered.items()
        if group.reduced and not any(c and f for c, f in zip(over, flags, strict=True))
    )
    return Nest(
        group,
        final,
        {key: access(key) for key in reads},
        {key: access(key) for key in writes},
        by_row,
        levels_of(group.nodes),
    )


def _read(group: Group, graph: Graph, reader: Node, name: str) -> _Placed:
    """Return the access of node `reader` to its argument `name`, which is outside the group."""
    arg = graph.node(name)
    if arg.kind is Kind.INSIDE:
        place = group.places[reader.name][len(reader.shape) - len(arg.shape) :]
        (dim,) = arg.dims
        return _Placed("", "bool", (), 0, ((place[dim], arg.shape[dim], *arg.window),))
    if arg.kind is Kind.INDEX:
        place = group.places[reader.name][len(reader.shape) - len(arg.shape) :]
        (dim,) = arg.dims
        return _Placed("", "float32", ((place[dim], arg.shape[dim], 1),))
    source = source_of(graph, arg)
    base, strides = source.base, source.strides
    if reader.kind is Kind.REDUCE:
        shape, place = arg.shape, contiguous_strides(arg.shape)
    else:
        rank = len(reader.shape) - len(arg.shape)
        shape, place = arg.shape, group.places[reader.name][rank:]
    guards = tuple((place[dim], shape[dim], start, end) for dim, start, end in source.windows)
    index = source.index
    through = None
    if index:
        axes = _located(place, shape, index.strides)
        through = _Placed(index.base.name, index.base.dtype, axes, index.offset)
    axes = _located(place, shape, strides)
    return _Placed(base.name, base.dtype, axes, source.offset, guards, through, source.gather)


def _located(place: tuple[int, ...], shape: Shape, strides: tuple[int, ...]) -> tuple[Axis, ...]:
    """Return the axes along which an access moves in the tensor.

    `place`, `shape` and `strides` are the domain strides, extents and tensor strides of all axes.
    """
    axes = zip(place, shape, strides, strict=True)
    return _runs((d, n, t) for d, n, t in axes if n > 1 and t != 0)


def _runs(axes: Iterable[Axis]) -> tuple[Axis, ...]:
    """Merge axes that one loop can cover: contiguous in the domain and evenly spaced in the
    tensor.
    """
    merged: list[Axis] = []
    for d, n, t in sorted(axes, reverse=True):
        if merged and merged[-1][0] == d * n and merged[-1][2] == t * n:
            merged[-1] = (d, merged[-1][1] * n, t)
        else:
            merged.append((d, n, t))
    return tuple(merged)


def _written(graph: Graph, name: str, place: tuple[int, ...]) -> tuple[Axis, ...]:
    axes = zip(place, graph.node(name).shape, graph.strides(name), strict=True)
    return _runs((d, n, t) for d, n, t in axes if n > 1)


def _cuts(group: Group, placed: Sequence[_Placed]) -> list[int]:
    """Return the domain strides of all loops, ascending from 1 to the domain's size.

    Each divides the next one. Raises NestError if the accesses admit no such sequence.
    """
    cuts = {1, group.size}
    spans = [(d, n) for p in placed for d, n, _ in p.axes] + list(group.reduced)
    spans += [(stride, extent) for p in placed for stride, extent, *_ in p.guards]
    for node in group.nodes:
        spans += merged_spans(zip(group.places[node.name], node.shape, strict=True))
    for stride, extent in spans:
        if stride:  # the index along a dimension of one element is always 0
            cuts |= {stride, stride * extent}
    chain = sorted(cuts)
    if any(b % a for a, b in pairwise(chain)):
        raise NestError(f"the reshapes of {group.nodes[0].name} have no common divisors")
    # A cut at the border of a window makes its condition constant along the inner dimensions.
    borders = {
        stride * edge
        for p in placed
        for stride, extent, *edges in p.guards
        for edge in edges
        if 0 < edge < extent
    }
    for border in sorted(b for b in borders if b >= SHORT_RUN):
        wider = sorted({*chain, border})
        if not any(b % a for a, b in pairwise(wider)):
            chain = wider
    return chain


def _is_reduced(stride: int, group: Group) -> bool:
    return any(d <= stride < d * n for d, n in group.reduced)


def _strides(placed: _Placed, dims: list[tuple[int, int]]) -> tuple[int, ...]:
    return tuple(
        next((t * (stride // d) for d, n, t in placed.axes if d <= stride < d * n), 0)
        for stride, _ in dims
    )


def _guards(placed: _Placed, dims: list[tuple[int, int]]) -> tuple[Guard, ...]:
    """Return the conditions of an access, with steps of 0 along dimensions that cannot change
    them.
    """
    found = []
    for stride, n, low, high in placed.guards:
        steps = [d // stride if stride <= d < stride * n else 0 for d, _ in dims]
        for k, step in enumerate(steps):
            if step and low % step == 0 and high % step == 0:
                steps[k + 1 :] = [0] * (len(steps) - k - 1)
                break
        found.append(Guard(tuple(steps), low, high))
    return tuple(found)


def _covers(node: Node, group: Group, dims: list[tuple[int, int]]) -> tuple[bool, ...]:
    axes = [s for s in zip(group.places[node.name], node.shape, strict=True) if s[1] > 1]
    return tuple(any(d <= stride < d * n for d, n in axes) for stride, _ in dims)


def _collapse(
    dims: list[tuple[int, int]],
    flags: list[bool],
    strides: list[tuple[int, ...]],
    covered: list[tuple[bool, ...]],
) -> list[int]:
    """Return the indices of the dimensions that remain when one loop can cover several adjacent
    ones.

    Each other dimension is merged into the next one.
    """
    keep = []
    for k in range(len(dims)):
        if k + 1 < len(dims) and flags[k] == flags[k + 1]:
            extent = dims[k + 1][1]
            regular = all(s[k] == s[k + 1] * extent for s in strides)
            if regular and all(c[k] == c[k + 1] for c in covered):
                continue
        keep.append(k)
    return keep


def _extents(
    dims: list[tuple[int, int]], flags: list[bool], keep: list[int]
) -> list[tuple[int, int, bool]]:
    merged, extent = [], 1
    for k, (stride, size) in enumerate(dims):
        extent *= size
        if k in keep:
            merged.append((stride, extent, flags[k]))
            extent = 1
    return merged
