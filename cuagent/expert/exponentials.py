"""Mark exponentials whose argument is never positive, to compute them by a faster function."""

from __future__ import annotations

import re
from dataclasses import replace

from cuagent.expert.graph.graph import Graph, Kind, Node

TELLING = {"index_if_equal", "lt", "le", "gt", "ge", "eq", "ne", "log", "xlogx", "reciprocal"}
"""Operations whose result distinguishes 0 from a subnormal number."""
TELLING_CALLS = re.compile(r"\b(arg\w+|topk|sort|kthvalue|max|min|log)\b")
"""Matches texts of torch calls whose result distinguishes 0 from a subnormal number."""


def bound_exponentials(graph: Graph) -> Graph:
    """Return the graph with exp(x - max x), where max is over the row, replaced by
    `exp_nonpositive`.

    `exp_nonpositive` is 0 where exp is subnormal. So an exponential remains if a comparison or a
    logarithm would show the difference.
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
    """Return the names of the values that reach an operation in TELLING or TELLING_CALLS.

    A sum on the way ends the search, because its other terms hide the difference.
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
