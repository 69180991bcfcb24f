"""Compute sums over places in the kernel of the convolution, as partial sums of each tile.

A norm over groups of channels, or a mean over all places, would read the result of a convolution
again once or twice. The kernel has the result in registers: it stores the mean of each channel over
a tile's places, the squared deviations from that mean, and the number of places. A small kernel
combines them: sum (y - m)^2 = sum over tiles of (deviations + count * (mean - m)^2), for any m that
is one number for each group. Nothing cancels, so an offset costs no precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cuagent.expert.convolutions.convolution import (
    COPY,
    TRANSPOSED,
    Convolution,
    Partials,
    is_pair,
)
from cuagent.expert.convolutions.match import convolution_axes
from cuagent.expert.convolutions.phases import Axis, axis_phases
from cuagent.expert.convolutions.tiles import PARTIAL_ROWS
from cuagent.expert.graph.graph import FLOATS, ITEM_BYTES, Graph, Kind, Node
from cuagent.expert.products.expressions import EXPRESSIONS

SUMS, MEANS, DEVIATIONS, COUNTS = (
    f"own partial {word} of {{0}}" for word in ("sums", "means", "deviations", "counts")
)
"""Text in `Node.op` of the nodes of partial sums, with shape (samples, channels, tiles), which a
convolution's kernel computes."""
CALLS = (SUMS, MEANS, DEVIATIONS, COUNTS)
CACHED_BYTES = 96 << 20
"""Least number of bytes that are normalised at the same time for which partial sums are used.

Fewer bytes stay in the cache, where the next pass reads them fast. On an H200 (50 MB of L2), with
17 to 67 MB, a second read was as fast as partial sums, and the sums made kernels of 128 channels
take 1.4 times as long. With 250 MB, partial sums reduced the time of the norm to 0.17 and 0.35.
"""
ROWS_PER_PROCESSOR = 2
"""Number of rows that one multiprocessor normalises at the same time."""
LEAST_TILES = 8
"""Least number of tiles per sample for partial sums. With fewer, the unused rows of the last tile
would cost more than a pass over the result."""


@dataclass(frozen=True)
class _Match:
    """A sum over all spatial positions, and over channel groups, of a value computed from a
    convolution.
    """

    total: Node
    value: Node
    """The summed node, with shape (samples, channels, *places)."""
    groups: int
    centre: str = ""
    """Name of the node whose values, one for each group, are subtracted before squaring; "" for a
    plain sum."""


def tile_count(axes: Sequence[Axis], transposed: bool) -> int:
    """Return the number of tiles of a sample: tiles of the largest phase times the number of
    phases.
    """
    points = math.prod(max(p.points for p in axis_phases(a, transposed)) for a in axes)
    phases = math.prod(len(axis_phases(a, transposed)) for a in axes)
    if is_pair(axes[-1], transposed):
        points, phases = points * 2, phases // 2
    return phases * math.ceil(points / PARTIAL_ROWS)


def partial_sums(graph: Graph, processors: int, skip: frozenset[str]) -> Graph:
    """Return the graph with sums over spatial positions replaced by sums over tiles.

    A sum is replaced if that saves passes over memory and its origin is not in `skip`.
    """
    users = graph.users()
    convolutions = {
        n.name: n
        for n in graph.nodes
        if n.op.startswith("own F.conv") and n.op not in (COPY, TRANSPOSED)
    }
    if not convolutions:
        return graph
    found = [
        match
        for node in graph.nodes
        if node.origin not in skip
        and (match := _sum_of(graph, node, users, convolutions))
        and (_is_long(match, processors) or _only_summed(graph, match.value, users))
    ]
    squared = {m.value.name for m in found if m.centre}
    nodes: list[Node] = []
    at = {m.total.name: m for m in found}
    made: set[str] = set()
    for node in graph.nodes:
        match = at.get(node.name)
        if match is None:
            nodes.append(node)
            continue
        conv = _convolution_of(graph, match.value, convolutions)
        assert conv is not None
        count = tile_count(*convolution_axes(graph, conv))
        new = _nodes(match, count, match.value.name in squared)
        nodes += [n for n in new if n.name not in made]
        made |= {n.name for n in new}
    return replace(graph, nodes=tuple(nodes)).live()


def _sum_of(
    graph: Graph, node: Node, users: dict[str, list[Node]], convolutions: dict[str, Node]
) -> _Match | None:
    """Return the sum over spatial positions of a convolution's value that `node` computes.

    None if it computes another operation.
    """
    if node.kind is not Kind.REDUCE or node.op != "sum" or node.dtype != "float32":
        return None
    source, centre = graph.node(node.inputs[0]), ""
    if not _over_places(source, node):
        return None
    if source.kind is Kind.POINTWISE and source.op == "mul" and source.args[0] == source.args[1]:
        difference = graph.node(source.inputs[0])
        if difference.kind is not Kind.POINTWISE or difference.op != "sub":
            return None
        if len(difference.inputs) != 2 or len(users[source.name]) > 1:
            return None
        source, middle = (graph.node(a) for a in difference.inputs)
        wanted = tuple(1 if d in node.dims else n for d, n in enumerate(source.shape))
        if middle.shape != wanted:
            return None
        centre = middle.name
    groups = source.shape[1]
    while source.kind is Kind.VIEW:
        source = graph.node(source.inputs[0])
    conv = _convolution_of(graph, source, convolutions)
    if conv is None or source.shape != conv.shape or source.dtype not in FLOATS:
        return None
    if source.shape[1] % groups or source.shape[0] != node.shape[0]:
        return None
    axes, transposed = convolution_axes(graph, conv)
    if tile_count(axes, transposed) < LEAST_TILES:
        return None
    return _Match(node, source, groups, centre)


def _is_long(match: _Match, processors: int) -> bool:
    """Return True if the rows of a norm are too large to stay in the GPU's cache between its
    passes."""
    rows = match.value.shape[0] * match.groups
    row = match.value.size * ITEM_BYTES[match.value.dtype] // rows
    return min(rows, ROWS_PER_PROCESSOR * processors) * row >= CACHED_BYTES


def _only_summed(graph: Graph, value: Node, users: dict[str, list[Node]]) -> bool:
    """Return True if only sums read a value, so that the value need not be stored."""
    if value.name in graph.outputs:
        return False
    return all(
        _only_summed(graph, user, users) if user.kind is Kind.VIEW else user.kind is Kind.REDUCE
        for user in users[value.name]
    )


def _over_places(source: Node, total: Node) -> bool:
    """Return True for a sum over all dimensions except samples and groups."""
    return len(source.shape) > 2 and total.dims == tuple(range(2, len(source.shape)))


def _convolution_of(graph: Graph, value: Node, convolutions: dict[str, Node]) -> Node | None:
    """Return the convolution from which elementwise operations compute a value; None if there are
    none or several."""
    found: set[str] = set()
    stack, seen = [value.name], set()
    while stack:
        node = graph.node(stack.pop())
        if node.name in seen:
            continue
        seen.add(node.name)
        if node.name in convolutions:
            found.add(node.name)
        elif node.size == value.size:
            if node.kind is not Kind.POINTWISE or node.op not in EXPRESSIONS:
                return None
            stack += node.inputs
    return convolutions[found.pop()] if len(found) == 1 else None


def _nodes(match: _Match, count: int, squared: bool) -> Iterator[Node]:
    """Yield the nodes of the partial sums, and the nodes that combine them, the last one under the
    sum's name."""
    value, total = match.value, match.total
    samples, channels = value.shape[:2]
    shape = (samples, channels, count)
    joined = (samples, match.groups, channels // match.groups * count)
    origin = total.origin

    def partial(call: str) -> Iterator[Node]:
        name = f"{value.name}_{call.split()[2]}"
        yield Node(name, Kind.LIBRARY, call, (value.name,), shape, origin=origin)
        yield Node(f"{name}_of_{match.groups}", Kind.VIEW, "view", (name,), joined, origin=origin)

    def of(call: str) -> str:
        return f"{value.name}_{call.split()[2]}_of_{match.groups}"

    def pointwise(word: str, op: str, *args: str, shape: tuple[int, ...] = joined) -> Node:
        name = f"{total.name}_{word}"
        return Node(name, Kind.POINTWISE, op, args, shape, origin=origin)

    calls = (MEANS, DEVIATIONS, COUNTS) if squared else (SUMS,)
    for call in calls:
        yield from partial(call)
    if match.centre:
        middle = Node(
            f"{total.name}_centre", Kind.VIEW, "view", (match.centre,),
            (samples, match.groups, 1), origin=origin,
        )  # fmt: skip
        yield middle
        yield pointwise("moved", "sub", of(MEANS), middle.name)
        yield pointwise("square", "mul", f"{total.name}_moved", f"{total.name}_moved")
        yield pointwise("weighted", "mul", f"{total.name}_square", of(COUNTS))
        yield pointwise("terms", "add", f"{total.name}_weighted", of(DEVIATIONS))
        terms = f"{total.name}_terms"
    elif squared:
        yield pointwise("terms", "mul", of(MEANS), of(COUNTS))
        terms = f"{total.name}_terms"
    else:
        terms = of(SUMS)
    row = Node(
        f"{total.name}_joined", Kind.REDUCE, "sum", (terms,), joined[:2], dims=(2,), origin=origin
    )  # fmt: skip
    yield row
    yield Node(total.name, Kind.VIEW, "view", (row.name,), total.shape, total.dtype, origin=origin)


def with_partials(steps: Sequence[Any], graph: Graph) -> tuple[tuple[Any, ...], frozenset[str]]:
    """Move the partial sums into the kernels of their convolutions.

    Returns (steps, origins of the sums that no convolution's kernel can compute).
    """
    result = list(steps)
    for step in steps:
        if not isinstance(step, Convolution) or step.is_copy or step.pool or step.reduces:
            continue
        if not step.right or step.node.op == TRANSPOSED:
            continue
        wanted = [s for s in steps if _is_partial(s) and s.inputs[0] in step.places]
        values = {s.inputs[0] for s in wanted}
        if len(values) != 1:
            continue
        (value,) = values
        if not _fits(step, graph):
            continue
        names = {s.op: s.name for s in wanted}
        partials = Partials(value, *(names.get(call, "") for call in CALLS))
        outputs = tuple(n for n in step.outputs if n != value or _is_read(graph, value, step))
        position = result.index(step)
        places: dict[str, tuple[int, ...]] = dict.fromkeys((*step.places, *partials.names), ())
        result[position] = replace(
            step, partials=partials, outputs=(*outputs, *partials.names), places=places
        )
        result = [s for s in result if s not in wanted]
    left = frozenset(s.origin for s in result if _is_partial(s))
    return tuple(result), left


def is_partial(graph: Graph, name: str) -> bool:
    """Return True if the named node contains partial sums, or is a view of partial sums."""
    node = graph.node(name)
    while node.kind is Kind.VIEW:
        node = graph.node(node.inputs[0])
    return _is_partial(node)


def _is_partial(step: Any) -> bool:
    return isinstance(step, Node) and step.op in CALLS


def _fits(step: Convolution, graph: Graph) -> bool:
    """Return True if the kernel's tiles are those for which the partial sums were planned."""
    return tuple(step.axes) == tuple(convolution_axes(graph, step.node)[0])


def _is_read(graph: Graph, name: str, step: Convolution) -> bool:
    """Return True if a node outside of the kernel reads a value, directly or through views."""
    if name in graph.outputs:
        return True
    readers = (user for user in graph.users()[name] if user.op not in CALLS)
    return any(
        _is_read(graph, user.name, step) if user.kind is Kind.VIEW else user.name not in step.places
        for user in readers
    )
