"""Lower embedding lookups and indexing along one dimension to reads through an index tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cuagent.expert.graph.graph import Gather, Graph, Kind, Node
from cuagent.expert.graph.lowering import (
    Lowering,
    argument,
    dtype_of,
    floating,
    operand,
    rule,
    shape_of,
)

READERS = (Kind.POINTWISE, Kind.REDUCE, Kind.WINDOW)
"""Kinds of nodes whose kernels read through an index tensor."""


@rule("embedding")
def embedding(low: Lowering, fx: Any) -> str | None:
    return _gathered(low, fx, fx.args[0], fx.args[1], 0, "F.embedding({1}, {0})", wraps=False)


@rule("index_select")
def index_select(low: Lowering, fx: Any) -> str | None:
    dim = argument(fx, 1, "dim")
    call = f"torch.index_select({{0}}, {dim}, {{1}})"
    return _gathered(low, fx, fx.args[0], fx.args[2], dim, call, wraps=False)


@rule("index")
def index(low: Lowering, fx: Any) -> str | None:
    """Lower `x[:, index]` with one tensor of integers."""
    used = [(k, value) for k, value in enumerate(fx.args[1]) if value is not None]
    if len(used) != 1:
        return None
    ((dim, places),) = used
    call = f"{{0}}[{':, ' * dim}{{1}}]"
    return _gathered(low, fx, fx.args[0], places, dim, call, wraps=True)


def _gathered(
    low: Lowering, fx: Any, table: Any, places: Any, dim: int, call: str, *, wraps: bool
) -> str | None:
    x, ids = operand(low, table), operand(low, places)
    if not isinstance(x, str) or not isinstance(ids, str) or not floating(fx):
        return None
    if dtype_of(places) not in ("int64", "int32") or Kind.GATHER in _kinds(low, x, ids):
        return None
    shape = low.shape(x)
    dim %= len(shape)
    return low.add(
        Node(
            low.unique_name(""),
            Kind.GATHER,
            call,
            (x, ids),
            shape_of(fx),
            low.by_name[x].dtype,
            (dim,),
            low.origin,
            spec=Gather(shape[dim], wraps),
        )
    )


def _kinds(low: Lowering, *names: str) -> set[Kind]:
    """Return the kinds of nodes, and of the nodes behind views."""
    found = set()
    for name in names:
        node = low.by_name[name]
        found.add(node.kind)
        while node.kind in (Kind.VIEW, Kind.STRIDED, Kind.WINDOW):
            node = low.by_name[node.inputs[0]]
            found.add(node.kind)
    return found


def settle_gathers(graph: Graph) -> Graph:
    """Return the graph with a call of torch for each gather that not only kernels read."""
    users = graph.users()

    def fused(name: str) -> bool:
        readers = users[name]
        if name in graph.outputs or any(reader.kind not in READERS for reader in readers):
            return False
        return all(fused(r.name) for r in readers if r.kind is Kind.WINDOW)

    nodes = tuple(
        replace(n, kind=Kind.LIBRARY, spec=None, dims=())
        if n.kind is Kind.GATHER and not fused(n.name)
        else n
        for n in graph.nodes
    )
    return replace(graph, nodes=nodes)
