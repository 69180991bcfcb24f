"""Locate the elements of a node's value in the memory of the tensor that contains them.

Views, slices and parts of a concatenation have no memory of their own. `source_of` also looks
through windows and gathers, whose elements are not at regular distances.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides, reshaped

WITHOUT_STRIDES = (Kind.WINDOW, Kind.INSIDE, Kind.INDEX, Kind.GATHER, Kind.TAKE)
"""Kinds of nodes whose elements strides alone do not locate."""


class NestError(Exception):
    """Error: a group has no common loop nest or no schedule, so that one kernel cannot compute
    it.
    """


@dataclass(frozen=True)
class Source:
    """Location of a value's elements: the tensor that contains them, strides, offset and windows.

    Outside of the windows the elements are zero. For a gather it also has the index tensor.
    """

    base: Node
    strides: tuple[int, ...]
    offset: int
    windows: tuple[tuple[int, int, int], ...] = ()
    """(dimension, first index, end) of each range outside of which the value's elements are
    zero.
    """
    index: Source | None = None
    gather: tuple[int, int, bool] = (0, 0, False)

    def moved(self, dim: int, start: int) -> Source:
        """Return the source for a longer tensor, which contains this value from `start` on along
        `dim`.
        """
        index = self.index.moved(dim, start) if self.index else None
        return replace(self, offset=self.offset - start * self.strides[dim], index=index)


def source_of(graph: Graph, node: Node) -> Source:
    """Return where a value's elements are located in memory, also through windows and gathers."""
    if node.kind is Kind.GATHER:
        return _gathered(graph, node)
    if node.kind is Kind.TAKE:
        return _taken(graph, node)
    if node.kind is not Kind.WINDOW:
        return Source(*storage(graph, node))
    inner = source_of(graph, graph.node(node.inputs[0]))
    (dim,), (start, end) = node.dims, node.window
    moved = tuple((d, a + start, b + start) if d == dim else (d, a, b) for d, a, b in inner.windows)
    return replace(inner.moved(dim, start), windows=(*moved, (dim, start, end)))


def _gathered(graph: Graph, node: Node) -> Source:
    (dim,), (table, places) = node.dims, map(graph.node, node.inputs)
    base, steps, offset = storage(graph, table)
    index_base, index_steps, index_offset = storage(graph, places)
    rank = len(places.shape)
    strides = (*steps[:dim], *(0,) * rank, *steps[dim + 1 :])
    through = (*(0,) * dim, *index_steps, *(0,) * (len(steps) - dim - 1))
    index = Source(index_base, through, index_offset)
    gather = (steps[dim], node.spec.extent, node.spec.wraps)
    return Source(base, strides, offset, (), index, gather)


def _taken(graph: Graph, node: Node) -> Source:
    (dim,), (table, places) = node.dims, map(graph.node, node.inputs)
    base, steps, offset = storage(graph, table)
    fixed = [0 if k == dim or table.shape[k] == 1 else step for k, step in enumerate(steps)]
    index = Source(*storage(graph, places))
    return Source(base, tuple(fixed), offset, (), index, (steps[dim], node.spec.extent, False))


def storage(graph: Graph, node: Node) -> tuple[Node, tuple[int, ...], int]:
    """Return the node whose memory contains a value, with the value's strides and offset in that
    memory.

    Both count elements. Raises NestError for a value that strides alone do not locate.
    """
    base = node
    while base.kind is Kind.VIEW:
        base = graph.node(base.inputs[0])
    if base.kind in WITHOUT_STRIDES:
        raise NestError(f"{node.name} is read through {base.name}, a {base.kind.value}")
    if base.kind is not Kind.STRIDED:
        if base is node or base.name not in graph.parts:
            return base, graph.strides(node.name), 0
        place = reshaped(base.shape, graph.strides(base.name), node.shape)
        if place is None:
            raise NestError(f"{node.name} reshapes a part of a concatenation")
        return base, place, 0
    if base is not node:
        raise NestError(f"{node.name} reshapes the strided slice {base.name}")
    owner = graph.node(base.inputs[0])
    while owner.kind is Kind.VIEW:
        owner = graph.node(owner.inputs[0])
    if owner.kind is Kind.STRIDED or owner.kind in WITHOUT_STRIDES:
        raise NestError(f"{node.name} is a slice of a strided slice")
    if graph.strides(owner.name) != contiguous_strides(owner.shape):
        raise NestError(f"{node.name} is a slice of a part of a concatenation")
    return owner, base.strides, base.offset
