"""Compute elementwise operations before a reshape of their argument instead of after it.

The kernel of a depthwise convolution or a pool also computes the elementwise operations on its
result, but only in the result's own shape. SegFormer flattens the places of a convolution's result
before the activation.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from cuagent.expert.graph.graph import FLOATS, Graph, Kind, Node, unused_name


def operate_before_reshapes(graph: Graph, kinds: Container[Kind]) -> Graph:
    """Return the graph in which elementwise operations on reshaped results of nodes of these kinds
    are computed in the results' own shapes, and then reshaped."""
    users, names = graph.users(), {node.name for node in graph.nodes}
    nodes: list[Node] = []
    before: dict[str, Node] = {}
    """Node with the same elements in its own shape, for each reshaped value."""
    for node in graph.nodes:
        readers = users[node.name]
        plain = all(u.kind is Kind.POINTWISE and u.shape == node.shape for u in readers)
        if node.kind is Kind.VIEW and plain and readers and node.name not in graph.outputs:
            inner = graph.node(node.inputs[0])
            if inner.kind in kinds:
                before[node.name] = inner
        shape = _shape_before(graph, node, before)
        if shape is None:
            nodes.append(node)
            continue
        name = unused_name(f"{node.name}_shaped", names)
        names.add(name)
        args = tuple(before[a].name if a in before else a for a in node.args)
        moved = replace(node, name=name, args=args, shape=shape)
        view = Node(
            node.name, Kind.VIEW, "view", (name,), node.shape, node.dtype, origin=node.origin
        )
        nodes += [moved, view]
        if plain and node.name not in graph.outputs:
            before[node.name] = moved
    return replace(graph, nodes=tuple(nodes)).live() if before else graph


def _shape_before(graph: Graph, node: Node, before: Mapping[str, Node]) -> tuple[int, ...] | None:
    """Return the shape in which an elementwise node can be computed before the reshape of its
    operands; None if they are not reshaped from one shape, or broadcast."""
    if node.kind is not Kind.POINTWISE or node.dtype not in FLOATS:
        return None
    shapes = {before[a].shape for a in node.inputs if a in before}
    others = (graph.node(a) for a in node.inputs if a not in before)
    if len(shapes) != 1 or any(other.shape for other in others):
        return None
    (shape,) = shapes
    return shape
