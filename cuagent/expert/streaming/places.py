"""Find the position of a node in the domain of a group that is being built.

The domain is the flat index range of the group's kernel (`group.py`). A node's place is the tuple
of its axes' strides in the domain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from cuagent.expert.graph.graph import Graph, Kind, Node, Shape, contiguous_strides, reshaped
from cuagent.expert.streaming.group import Group, Span

Place = tuple[int, ...]
"""Stride of each axis of a node in the domain of its group."""


@dataclass
class Draft:
    """A group that is being built; its fields have the same meaning as those of `Group`."""

    size: int
    places: dict[str, Place] = field(default_factory=dict)
    reduced: tuple[Span, ...] | None = None
    claimed: Group | None = None
    """Group of another family; no node may be added to it."""

    def merged(self, other: Draft) -> Draft | None:
        """Return a draft with the nodes of both; None if their domains differ."""
        both = {self.reduced, other.reduced} - {None}
        if self.size != other.size or len(both) > 1:
            return None
        return Draft(self.size, self.places | other.places, both.pop() if both else None)


def with_node(graph: Graph, draft: Draft, node: Node) -> Draft | None:
    """Return `draft` with `node` added; None if the node has no place in the draft's domain."""
    reduced = draft.reduced
    match node.kind:
        case Kind.VIEW:
            place = _view(graph, draft, node)
        case Kind.REDUCE:
            place, reduced = _reduce(graph, draft, node)
        case _:
            place = pointwise_place(graph, draft, node)
    if place is None:
        return None
    return Draft(draft.size, draft.places | {node.name: place}, reduced)


def pointwise_place(graph: Graph, draft: Draft, node: Node) -> Place | None:
    """Return the place of a pointwise node in the domain of `draft`, which contains its arguments.

    None if the node has no place there.
    """
    shape = node.shape
    place: list[int | None] = [None if n > 1 else 0 for n in shape]
    for arg in node.inputs:
        if arg not in draft.places:
            continue
        inner = graph.node(arg).shape
        for k, (n, stride) in enumerate(zip(inner, draft.places[arg], strict=True)):
            axis = k + len(shape) - len(inner)
            if n > 1 and place[axis] not in (None, stride):
                return None
            if n > 1:
                place[axis] = stride
    if node.size == draft.size:
        natural = contiguous_strides(shape)
        if all(p in (None, 0, s) for p, s in zip(place, natural, strict=True)):
            return tuple(s if n > 1 else 0 for n, s in zip(shape, natural, strict=True))
        return None
    if None in place:
        return None
    found = tuple(p for p in place if p is not None)
    # Two axes over the same part of the domain are an outer product, which has more elements.
    return found if overlapping(shape, found) is None else None


def _view(graph: Graph, draft: Draft, node: Node) -> Place | None:
    (arg,) = node.inputs
    return reshaped(graph.node(arg).shape, draft.places[arg], node.shape)


def _reduce(graph: Graph, draft: Draft, node: Node) -> tuple[Place | None, tuple[Span, ...] | None]:
    """Return the place of a reduction's result in the domain, and the axes over which it runs.

    (None, None) if the result has no place.
    """
    (name,) = node.inputs
    arg = graph.node(name)
    place = draft.places.get(name, contiguous_strides(arg.shape))
    if arg.size != draft.size:
        return None, None
    spans = merged_spans((place[d], arg.shape[d]) for d in node.dims)
    if draft.reduced not in (None, spans):
        return None, None
    dropped = tuple(s for d, s in enumerate(place) if d not in node.dims)
    keepdim = len(node.shape) == len(arg.shape)
    zeroed = tuple(0 if d in node.dims else s for d, s in enumerate(place))
    return (zeroed if keepdim else dropped), spans


def moved_places(graph: Graph, small: Draft, node: Node, place: Place) -> dict[str, Place] | None:
    """Return new places for the nodes of `small` in the domain of another group, so that `node`
    reads them.

    `place` is the place of `node` in that domain. None if no such places exist.
    """
    steps: dict[tuple[int, int], int] = {}
    for arg in node.inputs:
        if arg in small.places:
            shape = graph.node(arg).shape
            for n, step, to in _aligned(shape, small.places[arg], place):
                if n > 1 and steps.setdefault((n, step), to) != to:
                    return None
    factors = {to // step for (_, step), to in steps.items()}
    moved = {}
    for name, at in small.places.items():
        spans = list(zip(graph.node(name).shape, at, strict=True))
        if len(factors) == 1:
            (factor,) = factors
            moved[name] = tuple(step * factor for step in at)
        elif all(n == 1 or (n, step) in steps for n, step in spans):
            moved[name] = tuple(steps[n, step] if n > 1 else 0 for n, step in spans)
        else:
            return None
    return moved


def agrees(graph: Graph, draft: Draft) -> bool:
    """Return True if every node reads its arguments at the domain index where they are computed.

    After a merge this may be false: the rows of one group may be columns of the other.
    """
    for name, place in draft.places.items():
        node = graph.node(name)
        for arg in node.inputs:
            at = draft.places.get(arg)
            if at is not None and not _reads_in_place(node, place, graph.node(arg), at):
                return False
    return True


def _reads_in_place(node: Node, place: Place, arg: Node, at: Place) -> bool:
    """Return True if `node` reads each element of `arg` at the domain index where it is computed.

    `place` and `at` are the places of `node` and of `arg`.
    """
    shape, to = arg.shape, place
    match node.kind:
        case Kind.VIEW:
            viewed = reshaped(shape, at, node.shape)
            if viewed is None:
                return False
            shape, at = node.shape, viewed
        case Kind.REDUCE:
            kept = [k for k in range(len(shape)) if k not in node.dims]
            to = tuple(place[k] for k in kept) if len(node.shape) == len(shape) else place
            shape, at = tuple(shape[k] for k in kept), tuple(at[k] for k in kept)
    return all(a == b for n, a, b in _aligned(shape, at, to) if n > 1)


def _aligned(shape: Shape, place: Place, to: Place) -> Iterable[tuple[int, int, int]]:
    """Yield for each axis its extent and its strides in the places `place` and `to`; last axes
    correspond.
    """
    return zip(shape, place, to[len(to) - len(shape) :], strict=True)


def overlapping(shape: Shape, place: Place) -> tuple[int, int] | None:
    """Return two axes of a node whose ranges in the domain overlap; None if all are disjoint.

    `place` has the stride of each axis in the domain.
    """
    spans = sorted(
        (p, p * n, k) for k, (n, p) in enumerate(zip(shape, place, strict=True)) if n > 1
    )
    for (_, end, before), (start, _, after) in pairwise(spans):
        if start < end:
            return before, after
    return None


def merged_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Merge adjacent axes (stride, extent), outermost first, and drop axes of extent 1."""
    merged: list[Span] = []
    for stride, extent in sorted((s for s in spans if s[1] > 1), reverse=True):
        if merged and merged[-1][0] == stride * extent:
            merged[-1] = (stride, merged[-1][1] * extent)
        else:
            merged.append((stride, extent))
    return tuple(merged)
