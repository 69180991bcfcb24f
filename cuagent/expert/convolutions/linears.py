"""Compute a linear layer as a pointwise convolution if a permutation then makes its features the
channels.

The kernel stores (samples, channels, *places), and computes the elementwise operations after the
permutation. The library would write the product, and a further pass would transpose it.
"""

from __future__ import annotations

from dataclasses import replace

from cuagent.expert.capture.subject import Target
from cuagent.expert.convolutions.qualify import LARGE, LEAST_CHANNELS, LEAST_OPERATIONS
from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides
from cuagent.expert.products.qualify import MOST_DEPTH

RANKS = (3, 4, 5)
"""Possible numbers of dimensions of the result: samples, channels, and one to three spatial
dimensions."""


def linears_to_channels(graph: Graph, target: Target, keep: frozenset[str]) -> Graph:
    """Return the graph with linear layers in half precision replaced by pointwise convolutions.

    A layer is replaced if its only reader is a permutation that makes its features the channels.
    """
    if target.device != "cuda" or target.capability < (8, 0):
        return graph
    users, strided = graph.users(), _before_strided_results(graph) | _before_last(graph)
    replaced: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.origin in keep or not _qualifies(graph, node):
            continue
        readers = users[node.name]
        if len(readers) != 1 or node.name in graph.outputs or node.name in strided:
            continue
        if _moves(node, readers[0]):
            replaced |= {node.name: [], readers[0].name: _pointwise(graph, node, readers[0])}
    nodes = (n for node in graph.nodes for n in replaced.get(node.name, [node]))
    return replace(graph, nodes=tuple(nodes)) if replaced else graph


def _before_strided_results(graph: Graph) -> frozenset[str]:
    """Return the names of all nodes on which non-contiguous outputs of the graph depend."""
    names = graph.outputs
    needed = {
        n for n in names if graph.node(n).kind is Kind.LIBRARY and not graph.node(n).contiguous
    }
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(node.inputs)
    return frozenset(needed)


def _before_last(graph: Graph) -> frozenset[str]:
    """Return the names of all nodes whose values elementwise operations and permutations bring into
    an output in another order of dimensions, the argument of a depthwise convolution in
    channels-last layout, or an operation with another value in that layout.

    The product's own order is then the one in which its result is read.
    """
    orders = zip(graph.outputs, graph.orders, strict=False)
    needed = {name for name, order in orders if order}
    for node in reversed(graph.nodes):
        if node.kind is Kind.DEPTHWISE and node.spec.follows:
            needed.add(str(node.args[0]))
        elif node.kind is Kind.POINTWISE:
            last = [a for a in node.inputs if a in graph.last and graph.node(a).size == node.size]
            if node.name in needed or len(last) > 1:
                needed.update(node.inputs)
        elif node.kind is Kind.STRIDED and node.name in needed:
            needed.update(node.inputs)
    return frozenset(needed)


def _qualifies(graph: Graph, node: Node) -> bool:
    if node.kind is not Kind.LIBRARY or not node.op.startswith("F.linear(") or not node.contiguous:
        return False
    if node.dtype not in ("float16", "bfloat16") or len(node.shape) not in RANKS:
        return False
    x, weight = (graph.node(str(arg)) for arg in node.args[:2])
    same = {n.dtype for n in (node, x, weight)} == {node.dtype}
    if not same or x.kind is Kind.STRIDED or x.shape[:-1] != node.shape[:-1]:
        return False
    depth, large = weight.shape[1], max(x.size, node.size) // node.shape[0] >= LARGE
    return (
        LEAST_CHANNELS <= depth <= MOST_DEPTH
        and not large
        and (node.size * depth >= LEAST_OPERATIONS)
    )


def _moves(node: Node, reader: Node) -> bool:
    """Return True if the reader only moves the last dimension to the second position."""
    steps = contiguous_strides(node.shape)
    shape = (node.shape[0], node.shape[-1], *node.shape[1:-1])
    strides = (steps[0], steps[-1], *steps[1:-1])
    same = (reader.shape, reader.strides, reader.offset) == (shape, strides, 0)
    return reader.kind is Kind.STRIDED and same


def _pointwise(graph: Graph, node: Node, reader: Node) -> list[Node]:
    """Return the nodes of the convolution, named like the reader that it replaces, and of the views
    that it reads."""
    x, weight = (graph.node(str(arg)) for arg in node.args[:2])
    rank, steps = len(node.shape) - 2, contiguous_strides(x.shape)
    places, taps = f"{node.name}_places", f"{node.name}_taps"
    left = Node(
        places, Kind.STRIDED, "{0}.movedim(-1, 1)", (x.name,),
        (x.shape[0], x.shape[-1], *x.shape[1:-1]), x.dtype, origin=node.origin,
        contiguous=False, strides=(steps[0], steps[-1], *steps[1:-1]),
    )  # fmt: skip
    right = Node(
        taps, Kind.VIEW, "view", (weight.name,), (*weight.shape, *(1,) * rank), weight.dtype,
        origin=node.origin,
    )  # fmt: skip
    bias = ", bias={2}" if len(node.args) > 2 else ""
    call = f"own F.conv{rank}d({{0}}, {{1}}{bias})"
    args = (places, taps, *node.args[2:])
    conv = Node(reader.name, Kind.LIBRARY, call, args, reader.shape, node.dtype, origin=node.origin)
    return [left, right, conv]
