"""Let calls of the library's attention read slices of one product in place of their copies.

A module copies queries, keys and values so that the elements of a head are adjacent. Where a
convolution has stored its channels innermost, they are adjacent already. torch's kernels read
slices whose rows are aligned.
"""

from __future__ import annotations

from dataclasses import replace

from cuagent.expert.graph.graph import ITEM_BYTES, Graph, Kind, Node, contiguous_strides

CALL = "F.scaled_dot_product_attention("
ALIGNED = 16
"""Bytes of which the distance between two rows must be a multiple."""


def read_slices(graph: Graph) -> Graph:
    """Return the graph in which attentions read slices themselves, and not copies of them."""
    users = graph.users()
    read: dict[str, Node] = {}
    for copy in graph.nodes:
        readers = users[copy.name]
        if copy.name in graph.outputs or not readers or not _is_copy(graph, copy):
            continue
        turned = [_turned(graph, copy, reader) for reader in readers]
        calls = (user for reader in readers for user in users[reader.name])
        if None in turned or any(r.name in graph.outputs for r in readers):
            continue
        if all(user.kind is Kind.LIBRARY and user.op.startswith(CALL) for user in calls):
            read |= {view.name: view for view in turned if view is not None}
    return replace(graph, nodes=tuple(read.get(n.name, n) for n in graph.nodes)).live()


def _is_copy(graph: Graph, node: Node) -> bool:
    """Return True for a copy of a slice whose innermost elements are adjacent and aligned."""
    if node.kind is not Kind.POINTWISE or node.op != "cast" or not node.inputs:
        return False
    source = graph.node(node.inputs[0])
    if source.kind is not Kind.STRIDED or (source.shape, source.dtype) != (node.shape, node.dtype):
        return False
    item = ITEM_BYTES.get(node.dtype, 1)
    *outer, inner = source.strides
    return inner == 1 and all(step * item % ALIGNED == 0 for step in (*outer, source.offset))


def _turned(graph: Graph, copy: Node, reader: Node) -> Node | None:
    """Return the permuted view `reader` of a copy as a view of the slice that is copied; None for
    other readers."""
    if reader.kind is not Kind.STRIDED or reader.offset or reader.size != copy.size:
        return None
    if not reader.op.startswith("{0}.permute(") or reader.op.count("(") > 1:
        return None
    source = graph.node(copy.inputs[0])
    sides = zip(contiguous_strides(copy.shape), copy.shape, source.strides, strict=True)
    steps = {(place, n): step for place, n, step in sides}
    strides = [steps.get((s, n)) for s, n in zip(reader.strides, reader.shape, strict=True)]
    if None in strides or reader.shape[-1] != copy.shape[-1]:
        return None
    return replace(
        reader,
        args=source.args,
        op=reader.op.replace("{0}", source.op),
        strides=tuple(s for s in strides if s is not None),
        offset=source.offset,
    )
