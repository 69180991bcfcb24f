"""Compute a linear layer as a pointwise convolution if a permutation before or behind it makes its
features the channels.

The kernel reads or stores (samples, channels, *places), and computes the elementwise operations
behind it. The library would copy the permuted argument before the product, or a further pass would
transpose the result. The layer that mixes the tokens of an MLP-Mixer is an example of both.
"""

from __future__ import annotations

from dataclasses import replace

from cuagent.expert.capture.subject import Target
from cuagent.expert.convolutions.qualify import LARGE, LEAST_CHANNELS, LEAST_OPERATIONS
from cuagent.expert.graph.graph import Graph, Kind, Node, Shape, contiguous_strides
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


def linears_of_channels(graph: Graph, target: Target, keep: frozenset[str]) -> Graph:
    """Return the graph with linear layers in half precision of permuted channels replaced by
    pointwise convolutions.

    A layer is replaced if only elementwise operations read it, and permutations that make the
    features the channels read these. The convolution's `order` says that it stores channels first.
    """
    if target.device != "cuda" or target.capability < (8, 0):
        return graph
    replaced: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.origin in keep or not _qualifies(graph, node, moved=True):
            continue
        x = graph.node(str(node.args[0]))
        base = graph.node(x.inputs[0])
        if (
            base.kind is not Kind.STRIDED
            and _moves_to_last(base, x)
            and _is_moved_back(graph, node)
        ):
            order = (0, len(node.shape) - 1, *range(1, len(node.shape) - 1))
            taps, conv = _layer(graph, node, base.name)
            replaced[node.name] = [taps, replace(conv, order=order)]
    nodes = (n for node in graph.nodes for n in replaced.get(node.name, [node]))
    return replace(graph, nodes=tuple(nodes)).live() if replaced else graph


def _is_moved_back(graph: Graph, node: Node) -> bool:
    """Return True if elementwise operations read the value of `node` alone, and permutations that
    move its last dimension to the second position read their results."""
    users, found, waiting = graph.users(), False, [node]
    while waiting:
        value = waiting.pop()
        if value.name in graph.outputs or value.shape != node.shape:
            return False
        for reader in users[value.name]:
            if reader.kind is Kind.POINTWISE:
                waiting.append(reader)
            elif _moves(value, reader):
                found = True
            else:
                return False
    return found


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


def _qualifies(graph: Graph, node: Node, moved: bool = False) -> bool:
    """Return True for a large linear layer in half precision. `moved`: its argument must be a
    permuted value; else it must not."""
    if node.kind is not Kind.LIBRARY or not node.op.startswith("F.linear(") or not node.contiguous:
        return False
    if node.dtype not in ("float16", "bfloat16") or len(node.shape) not in RANKS:
        return False
    x, weight = (graph.node(str(arg)) for arg in node.args[:2])
    same = {n.dtype for n in (node, x, weight)} == {node.dtype}
    if not same or (x.kind is Kind.STRIDED) != moved or x.shape[:-1] != node.shape[:-1]:
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
    return _is_view(reader, shape, (steps[0], steps[-1], *steps[1:-1]))


def _moves_to_last(node: Node, reader: Node) -> bool:
    """Return True if the reader only moves the second dimension to the last position."""
    steps = contiguous_strides(node.shape)
    shape = (node.shape[0], *node.shape[2:], node.shape[1])
    return _is_view(reader, shape, (steps[0], *steps[2:], steps[1]))


def _is_view(node: Node, shape: Shape, strides: Shape) -> bool:
    same = (node.shape, node.strides, node.offset) == (shape, strides, 0)
    return node.kind is Kind.STRIDED and same


def _pointwise(graph: Graph, node: Node, reader: Node) -> list[Node]:
    """Return the nodes of the convolution, named like the reader that it replaces, and of the views
    that it reads."""
    x = graph.node(str(node.args[0]))
    steps, places = contiguous_strides(x.shape), f"{node.name}_places"
    left = Node(
        places, Kind.STRIDED, "{0}.movedim(-1, 1)", (x.name,),
        (x.shape[0], x.shape[-1], *x.shape[1:-1]), x.dtype, origin=node.origin,
        contiguous=False, strides=(steps[0], steps[-1], *steps[1:-1]),
    )  # fmt: skip
    taps, conv = _layer(graph, node, places)
    return [left, taps, replace(conv, name=reader.name, shape=reader.shape)]


def _layer(graph: Graph, node: Node, channels: str) -> tuple[Node, Node]:
    """Return the nodes of a linear layer's weight with one tap, and of the convolution of the value
    `channels`."""
    weight, rank, name = graph.node(str(node.args[1])), len(node.shape) - 2, f"{node.name}_taps"
    shape = (*weight.shape, *(1,) * rank)
    taps = Node(name, Kind.VIEW, "view", (weight.name,), shape, weight.dtype, origin=node.origin)
    bias = ", bias={2}" if len(node.args) > 2 else ""
    call = f"own F.conv{rank}d({{0}}, {{1}}{bias})"
    return taps, replace(node, op=call, args=(channels, name, *node.args[2:]))
