"""Linear layers of few rows read weights that were transposed once (CPU, float32).

The library multiplies few rows faster with weights whose outputs are adjacent: 8 rows of 192 to 384
features took 15 us, and 8 with transposed weights; 16 rows of 256 to 1024 84 and 59.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from cuagent.expert.edits import PREPARATIONS, prepared_names
from cuagent.expert.graph.graph import Graph, Kind, Node

MOST_ROWS = 16
MOST_WEIGHTS = 1 << 20
"""Largest number of weights that are held twice."""
TRANSPOSED = "{0}.t().contiguous()"
PREPARATIONS |= {TRANSPOSED}
FORMS = {
    "F.linear({0}, {1})": "torch.mm({0}, {1})",
    "F.linear({0}, {1}, bias={2})": "torch.addmm({2}, {0}, {1})",
}


def transpose_weights(graph: Graph, device: str, keep: frozenset[str]) -> Graph:
    """Return the graph with products by transposed weights in place of such layers."""
    if device != "cpu":
        return graph
    prepared = prepared_names(graph)
    nodes: list[Node] = []
    made: dict[str, str] = {}
    for node in graph.nodes:
        few = node.kind is Kind.LIBRARY and node.op in FORMS and _has_few_rows(graph, node)
        if few and node.origin not in keep and node.args[1] in prepared:
            nodes += _transposed(graph, node, made)
        else:
            nodes.append(node)
    return replace(graph, nodes=tuple(nodes))


def _has_few_rows(graph: Graph, node: Node) -> bool:
    weight = graph.node(str(node.args[1]))
    few = len(node.shape) == 2 and math.prod(node.shape[:-1]) <= MOST_ROWS
    return few and node.dtype == weight.dtype == "float32" and weight.size <= MOST_WEIGHTS


def _transposed(graph: Graph, node: Node, made: dict[str, str]) -> Iterator[Node]:
    """Yield the product, after the transposed weight if `made` does not have it yet."""
    weight = graph.node(str(node.args[1]))
    if weight.name not in made:
        name = f"{weight.name}_transposed"
        while any(n.name == name for n in graph.nodes):
            name += "_"
        made[weight.name] = name
        shape = weight.shape[::-1]
        yield Node(name, Kind.LIBRARY, TRANSPOSED, (weight.name,), shape, origin=node.origin)
    args = (node.args[0], made[weight.name], *node.args[2:])
    yield replace(node, op=FORMS[node.op], args=args)
