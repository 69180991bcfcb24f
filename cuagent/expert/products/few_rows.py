"""Transpose the weights of linear layers with few rows once, in advance (CPU, float32).

The library multiplies few rows faster if the weights of adjacent outputs are adjacent in memory: 8
rows of 192 to 384 features took 15 us, and 8 us with transposed weights; 16 rows of 256 to 1024
took 84 and 59 us.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from cuagent.expert.edits import PREPARATIONS, prepared_names
from cuagent.expert.graph.graph import Graph, Kind, Node

MOST_ROWS = 16
MOST_WEIGHTS = 1 << 20
"""Largest number of elements of a weight that is transposed, because both forms stay in memory."""
TRANSPOSED = "{0}.t().contiguous()"
PREPARATIONS |= {TRANSPOSED}
FORMS = {
    "F.linear({0}, {1})": "torch.mm({0}, {1})",
    "F.linear({0}, {1}, bias={2})": "torch.addmm({2}, {0}, {1})",
}


def transpose_weights(graph: Graph, device: str, keep: frozenset[str]) -> Graph:
    """Return the graph with linear layers of few rows replaced by products with transposed weights.

    `keep`: origins of nodes that are not replaced.
    """
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
    """Yield the node of the product, preceded by that of the transposed weight if `made` does not
    have it yet."""
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
