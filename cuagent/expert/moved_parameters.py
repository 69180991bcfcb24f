"""Store permuted values of parameters once, in the order in which kernels read them."""

from __future__ import annotations

from dataclasses import replace

from cuagent.expert.edits import PREPARATIONS, prepared_names
from cuagent.expert.graph.graph import COMPUTED, Graph, Kind, Node


def store_moved_parameters(graph: Graph, device: str) -> Graph:
    """Return the graph in which kernels read contiguous copies of permuted parameters.

    On a GPU adjacent threads would otherwise read elements that are far apart: a table of positions
    is permuted where it is added to a result with channels before positions.
    """
    if device != "cuda":
        return graph
    prepared, users = prepared_names(graph), graph.users()
    names = {node.name for node in graph.nodes}
    copies: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.kind in COMPUTED and node.name not in prepared:
            node = replace(
                node, args=tuple(copies.get(a, a) if isinstance(a, str) else a for a in node.args)
            )
        nodes.append(node)
        readers = [u for u in users[node.name] if u.kind in COMPUTED and u.name not in prepared]
        if not readers or not _is_permuted(node, graph, prepared):
            continue
        name = f"{node.name}_stored"
        while name in names:
            name += "_"
        names.add(name)
        op = f"{node.op}.contiguous()"
        PREPARATIONS.add(op)
        copies[node.name] = name
        nodes.append(
            Node(name, Kind.LIBRARY, op, node.args, node.shape, node.dtype, origin=node.origin)
        )
    return replace(graph, nodes=tuple(nodes)).live()


def _is_permuted(node: Node, graph: Graph, prepared: frozenset[str]) -> bool:
    """Return True for a strided view of prepared values whose innermost elements are far apart, and
    which repeats none."""
    if node.kind is not Kind.STRIDED or node.inputs[0] not in prepared:
        return False
    inner = next((s for n, s in zip(node.shape[::-1], node.strides[::-1], strict=True) if n > 1), 1)
    return inner > 1 and node.size <= graph.node(node.inputs[0]).size
