"""Mark exponentials of arguments that are never positive, for which a cheaper function serves."""

from __future__ import annotations

import re
from dataclasses import replace

from cuagent.expert.graph.graph import Graph, Kind, Node

TELLING = {"index_if_equal", "lt", "le", "gt", "ge", "eq", "ne", "log", "xlogx", "reciprocal"}
"""Operations that give different results for 0 and for a subnormal number."""
TELLING_CALLS = re.compile(r"\b(arg\w+|topk|sort|kthvalue|max|min|log)\b")
"""Matches calls of torch that do."""


def bound_exponentials(graph: Graph) -> Graph:
    """Replace exp(x - max x), with the maximum over the row, by `exp_nonpositive`.

    That is 0 where exp is subnormal, which a comparison or a logarithm would show.
    """
    told_apart = _told_apart(graph)

    def bounded(node: Node) -> bool:
        if node.kind is not Kind.POINTWISE or node.op != "exp" or node.name in told_apart:
            return False
        gap = graph.node(node.inputs[0])
        if gap.op != "sub" or len(gap.inputs) != 2:
            return False
        value, top = gap.inputs
        largest = graph.node(top)
        extreme = largest.kind is Kind.REDUCE and largest.op in ("max", "amax")
        return extreme and largest.inputs == (value,)

    nodes = tuple(replace(n, op="exp_nonpositive") if bounded(n) else n for n in graph.nodes)
    return replace(graph, nodes=nodes)


def _told_apart(graph: Graph) -> set[str]:
    """Return the nodes whose values reach an operation that tells 0 and subnormal numbers apart.

    A sum of others hides them.
    """
    found: set[str] = set()
    for node in reversed(graph.nodes):
        telling = node.kind is Kind.POINTWISE and node.op in TELLING
        telling |= node.kind is Kind.LIBRARY and bool(TELLING_CALLS.search(node.op))
        passed = node.name in found and (
            node.kind in (Kind.POINTWISE, Kind.VIEW, Kind.STRIDED, Kind.WINDOW)
            or (node.kind is Kind.REDUCE and node.op != "sum")
        )
        if telling or passed:
            found.update(node.inputs)
    return found
