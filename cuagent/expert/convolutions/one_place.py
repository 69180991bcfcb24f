"""Compute a convolution with one input and one output position as a linear layer or a scaling.

Squeeze-and-excitation blocks contain such layers, and so does everything behind a global pool. Only
one tap meets the input. The library launches several kernels for such a convolution. A linear layer
is one call, and a depthwise layer becomes elementwise work, which is fused with its neighbours. The
result is equal in exact arithmetic. Not covered: groups of several channels, transposed
convolutions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cuagent.expert.convolutions.convolution import settings_of
from cuagent.expert.edits import PREPARATIONS, prepared_names
from cuagent.expert.graph.graph import Graph, Kind, Node

CALLS = ("F.conv1d(", "F.conv2d(", "F.conv3d(")


def without_places(graph: Graph, keep: frozenset[str]) -> Graph:
    """Return the graph in which no convolution has a single input and output position.

    `keep`: origins of nodes that are not replaced.
    """
    prepared = prepared_names(graph)
    replaced: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.origin in keep or not _has_one_place(graph, node):
            continue
        if all(a in prepared for a in node.args[1:]):
            replaced |= {node.name: found} if (found := _replacement(graph, node)) else {}
    nodes = (n for node in graph.nodes for n in replaced.get(node.name, [node]))
    return replace(graph, nodes=tuple(nodes)) if replaced else graph


def _has_one_place(graph: Graph, node: Node) -> bool:
    if node.kind is not Kind.LIBRARY or not node.op.startswith(CALLS) or not node.contiguous:
        return False
    x = graph.node(str(node.args[0]))
    stored = x.contiguous and not x.order and x.kind is not Kind.STRIDED
    return stored and len(x.shape) == len(node.shape) and {*x.shape[2:], *node.shape[2:]} == {1}


def _replacement(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes that replace a convolution, the last one with its name; [] if it has groups
    of several channels, or no tap that meets the input."""
    settings = settings_of(node)
    x, weight = (graph.node(str(arg)) for arg in node.args[:2])
    if isinstance(settings["padding"], str):
        return []
    pads = list(zip(settings["padding"], settings["dilation"], strict=True))
    taps = [p // d for p, d in pads]
    if any(p % d for p, d in pads):
        return []
    if any(tap >= extent for tap, extent in zip(taps, weight.shape[2:], strict=True)):
        return []
    at = ", ".join(map(str, taps))
    if settings["groups"] == 1:
        return _linear(node, x, weight, f"{{0}}[:, :, {at}].contiguous()")
    if settings["groups"] == x.shape[1] == node.shape[1]:
        return _scaling(node, weight, f"{{0}}[:, 0, {at}].contiguous()")
    return []


def _linear(node: Node, x: Node, weight: Node, tap: str) -> list[Node]:
    PREPARATIONS.add(tap)
    new = partial(Node, dtype=node.dtype, origin=node.origin)
    rows, matrix, product = (f"{node.name}_{part}" for part in ("rows", "matrix", "product"))
    call = "F.linear({0}, {1}, bias={2})" if len(node.args) > 2 else "F.linear({0}, {1})"
    return [
        new(rows, Kind.VIEW, "view", (x.name,), x.shape[:2]),
        new(matrix, Kind.LIBRARY, tap, (weight.name,), weight.shape[:2]),
        new(product, Kind.LIBRARY, call, (rows, matrix, *node.args[2:]), node.shape[:2]),
        new(node.name, Kind.VIEW, "view", (product,), node.shape),
    ]


def _scaling(node: Node, weight: Node, tap: str) -> list[Node]:
    PREPARATIONS.add(tap)
    new = partial(Node, dtype=node.dtype, origin=node.origin)
    channel = (node.shape[1], *(1 for _ in node.shape[2:]))
    flat, factor, scaled, shift = (f"{node.name}_{p}" for p in ("tap", "factor", "scaled", "shift"))
    x, bias = node.args[0], node.args[2:]
    made = [
        new(flat, Kind.LIBRARY, tap, (weight.name,), (node.shape[1],)),
        new(factor, Kind.VIEW, "view", (flat,), channel),
        new(scaled if bias else node.name, Kind.POINTWISE, "mul", (x, factor), node.shape),
    ]
    if bias:
        made += [
            new(shift, Kind.VIEW, "view", bias, channel),
            new(node.name, Kind.POINTWISE, "add", (scaled, shift), node.shape),
        ]
    return made
