"""Copy only the slices of a value that are read, instead of the whole value, and read the parts of
a concatenation where only its copy is read.

A channel shuffle concatenates two values, copies a permuted view of the result, and the network
then reads the halves of the copy in different places. Here each half has a copy of its own, which
reads the two values directly and can be stored in the layout that its reader needs. Where the
network returns the whole copy, it reads the two values directly too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cuagent.expert.graph.graph import (
    JOIN,
    Graph,
    Kind,
    Node,
    Shape,
    contiguous_strides,
    unused_name,
)
from cuagent.expert.graph.orders import permuted


@dataclass(frozen=True)
class _Cut:
    """A range of the indices along one dimension of a value."""

    dim: int
    first: int
    end: int


def slice_before_copies(graph: Graph) -> Graph:
    """Return the graph in which a copy that only slices read is one copy for each slice, and a copy
    of a concatenation that nothing else reads is a choice between its parts."""
    users, names = graph.users(), {node.name for node in graph.nodes}
    made: dict[str, list[Node]] = {}
    """Nodes that compute a slice from the argument of the copy, by the name of the slice."""
    for node in graph.nodes:
        cuts = _cuts(graph, node, users)
        if not cuts and _is_only_reader(graph, node, users):
            parts = _parts(graph, graph.node(node.inputs[0]), None)
            if parts is not None:
                *new, last = _choice(node, node.name, None, parts, names)
                made[node.name] = [*new, replace(last, name=node.name)]
        for read, cut in cuts.items():
            source = graph.node(node.inputs[0])
            parts = _parts(graph, source, cut)
            if parts is not None:
                new = _choice(node, read, cut, parts, names)
            else:
                cut_source = _cut_source(source, _unused(f"{read}_source", names), cut)
                args, shape = (cut_source.name,), _cut_shape(node.shape, cut)
                copied = replace(node, name=_unused(f"{read}_copy", names), args=args, shape=shape)
                new = [cut_source, copied]
            view = replace(
                node, name=read, kind=Kind.VIEW, op="view", args=(new[-1].name,),
                shape=graph.node(read).shape,
            )  # fmt: skip
            made[read] = [*new, view]
    nodes = tuple(new for node in graph.nodes for new in made.get(node.name, [node]))
    return replace(graph, nodes=nodes).live() if made else graph


def _cuts(graph: Graph, node: Node, users: dict[str, list[Node]]) -> dict[str, _Cut]:
    """Return the slices that read the copy `node`, by name, with their ranges in its shape; nothing
    if another operation reads it, too."""
    if not _is_copy(graph, node):
        return {}
    seen, readers = node, users[node.name]
    if len(readers) == 1 and readers[0].kind is Kind.VIEW and seen.name not in graph.outputs:
        seen, readers = readers[0], users[readers[0].name]
    found: dict[str, _Cut] = {}
    for reader in readers:
        cut = _cut_of(seen.shape, reader) if reader.kind is Kind.STRIDED else None
        before = _cut_before(node.shape, seen.shape, cut) if cut is not None else None
        if before is None:
            return {}
        found[reader.name] = before
    whole = sum(graph.node(name).size for name in found) <= node.size
    return found if whole and len(found) > 1 and seen.name not in graph.outputs else {}


def _is_copy(graph: Graph, node: Node) -> bool:
    """Return True for a copy of a permuted view."""
    if node.kind is not Kind.POINTWISE or node.op != "cast" or not node.inputs:
        return False
    source = graph.node(node.inputs[0])
    return source.kind is Kind.STRIDED and source.shape == node.shape


def _is_only_reader(graph: Graph, node: Node, users: dict[str, list[Node]]) -> bool:
    """Return True for a copy of a permuted view of a value that nothing else reads."""
    if not _is_copy(graph, node):
        return False
    source = graph.node(node.inputs[0])
    chain = (source, *map(graph.node, source.inputs))
    inner = (*chain, *map(graph.node, chain[-1].inputs))
    return all(len(users[n.name]) == 1 and n.name not in graph.outputs for n in inner)


def _cut_of(shape: Shape, slice_: Node) -> _Cut | None:
    """Return the range that a slice selects in a contiguous value of this shape; None if it is not
    a range along one dimension."""
    steps = contiguous_strides(shape)
    if len(slice_.shape) != len(shape) or slice_.strides != steps:
        return None
    dims = [d for d, (a, b) in enumerate(zip(shape, slice_.shape, strict=True)) if a != b]
    if len(dims) != 1 or slice_.offset % steps[dims[0]]:
        return None
    first = slice_.offset // steps[dims[0]]
    end = first + slice_.shape[dims[0]]
    return _Cut(dims[0], first, end) if end <= shape[dims[0]] else None


def _cut_before(given: Shape, shape: Shape, cut: _Cut) -> _Cut | None:
    """Return the range in a value of the shape `given` that is `cut` after a reshape to `shape`;
    None if there is no such range."""
    outer, length = math.prod(shape[: cut.dim]), shape[cut.dim]
    for dim in range(len(given)):
        if math.prod(given[:dim]) != outer or given[dim] == 1:
            continue
        inner = length // given[dim]
        whole = length % given[dim] == 0 and cut.first % inner == 0 and cut.end % inner == 0
        return _Cut(dim, cut.first // inner, cut.end // inner) if whole else None
    return None


def _cut_shape(shape: Sequence[int], cut: _Cut | None) -> Shape:
    if cut is None:
        return tuple(shape)
    return (*shape[: cut.dim], cut.end - cut.first, *shape[cut.dim + 1 :])


def _cut_source(source: Node, name: str, cut: _Cut | None) -> Node:
    """Return the part of a strided view that a cut selects; all of it without a cut."""
    if cut is None:
        return replace(source, name=name)
    index = ", ".join([":"] * cut.dim + [f"{cut.first}:{cut.end}"])
    return replace(
        source,
        name=name,
        op=f"{source.op}[{index}]",
        shape=_cut_shape(source.shape, cut),
        offset=source.offset + cut.first * source.strides[cut.dim],
    )


@dataclass(frozen=True)
class _Parts:
    """The values of a concatenation that a permuted view reads as slices along one dimension."""

    names: tuple[str, ...]
    shape: Shape
    """Shape of each value before the permutation, with one index along that dimension."""
    order: tuple[int, ...]
    """The permutation."""
    dim: int
    """The dimension, after the permutation."""


def _parts(graph: Graph, source: Node, cut: _Cut | None) -> _Parts | None:
    """Return the concatenated values that the permuted view `source` reads; None if it reads no
    concatenation of equal parts along a dimension of its own, or is cut along that one."""
    view = graph.node(source.inputs[0])
    join = graph.node(view.inputs[0]) if view.kind is Kind.VIEW else view
    if view is join or not join.op.startswith(JOIN) or len(join.dims) != 1 or source.offset:
        return None
    outer = math.prod(join.shape[: join.dims[0]])
    places = [d for d, n in enumerate(view.shape) if n == len(join.inputs)]
    split = next((d for d in places if math.prod(view.shape[:d]) == outer), None)
    equal = len({graph.node(name).shape for name in join.inputs}) == 1
    steps = contiguous_strides(view.shape)
    whole = sorted(source.strides, reverse=True) == list(steps) and min(view.shape) > 1
    if split is None or not equal or not whole:
        return None
    order = tuple(steps.index(stride) for stride in source.strides)
    dim = order.index(split)
    shape = (*view.shape[:split], 1, *view.shape[split + 1 :])
    return None if cut is not None and dim == cut.dim else _Parts(join.inputs, shape, order, dim)


def _choice(copy: Node, read: str, cut: _Cut | None, parts: _Parts, names: set[str]) -> list[Node]:
    """Return the nodes that compute a slice of a copy, or all of it, from the parts of a
    concatenation: a choice by the index along one dimension. The last node has the result."""
    shape = _cut_shape(copy.shape, cut)
    inner = tuple(n if d == parts.dim else 1 for d, n in enumerate(shape))
    whole = replace(copy, shape=shape, dims=(parts.dim,))
    nodes, windows = list[Node](), list[Node]()
    for k, part in enumerate(parts.names):
        nodes += _cut_part(copy, part, k, read, cut, parts, names)
        name = _unused(f"{read}_window{k}", names)
        window = replace(
            whole, name=name, kind=Kind.WINDOW, op="window", args=(nodes[-1].name,),
            window=(k, k + 1),
        )  # fmt: skip
        nodes.append(window)
        windows.append(window)
    value = windows.pop().name
    for window in reversed(windows):
        name = _unused(f"{read}_inside", names)
        inside = replace(
            window, name=name, kind=Kind.INSIDE, op="inside", args=(), shape=inner, dtype="bool"
        )
        args = (inside.name, window.name, value)
        value = _unused(f"{read}_copy", names)
        nodes += [inside, replace(copy, name=value, op="where", args=args, shape=shape)]
    return nodes


def _cut_part(
    copy: Node, part: str, number: int, read: str, cut: _Cut | None, parts: _Parts, names: set[str]
) -> list[Node]:
    """Return the nodes that read the slice of one value of a concatenation."""
    view = replace(
        copy, name=_unused(f"{read}_part{number}", names), kind=Kind.VIEW, op="view",
        args=(part,), shape=parts.shape,
    )  # fmt: skip
    moved = replace(
        view,
        kind=Kind.STRIDED,
        op=f"{{0}}.permute({list(parts.order)})",
        args=(view.name,),
        shape=permuted(parts.shape, parts.order),
        strides=permuted(contiguous_strides(parts.shape), parts.order),
        contiguous=False,
    )
    return [view, _cut_source(moved, _unused(f"{read}_source{number}", names), cut)]


def _unused(name: str, names: set[str]) -> str:
    """Return a name that is not in `names`, and add it."""
    found = unused_name(name, names)
    names.add(found)
    return found
