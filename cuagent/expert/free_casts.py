"""Let kernels read half-precision tensors in place of their float32 copies.

A kernel converts each half-precision value to float32 when it loads it, so such a conversion costs
nothing there. The copy is then neither written to memory nor read.
"""

from __future__ import annotations

from dataclasses import replace

from cuagent.expert.edits import prepared_names
from cuagent.expert.graph.graph import COMPUTED, Graph, Kind, Node, Operand, reshaped

HALVES = ("bfloat16", "float16")
SELECTING = (Kind.GATHER, Kind.TAKE, Kind.WINDOW, Kind.INDEX)
"""Kinds of nodes that kernels read only without a reshape between."""


def is_free(graph: Graph, node: Node) -> bool:
    """Return True for the conversion of a half-precision tensor to float32."""
    if node.kind is not Kind.POINTWISE or node.op != "cast" or node.dtype != "float32":
        return False
    if not node.inputs:  # a number
        return False
    source = graph.node(node.inputs[0])
    return source.dtype in HALVES and source.shape == node.shape


def reads_half(graph: Graph, node: Node) -> bool:
    """Return True if a node with a float32 result reads a half-precision tensor."""
    if node.dtype != "float32" or node.kind not in COMPUTED:
        return False
    return any(graph.node(a).dtype in HALVES for a in node.inputs)


def read_before_widening(graph: Graph) -> Graph:
    """Return the graph in which computed nodes read half-precision tensors themselves, also through
    views, instead of their float32 copies.

    Copies of parameters are computed once, in fp64, and stay.
    """
    users, names = graph.users(), {node.name for node in graph.nodes}
    prepared = prepared_names(graph)
    half: dict[str, str] = {}
    nodes: list[Node] = []

    def source(arg: Operand) -> Operand:
        return half.get(arg, arg) if isinstance(arg, str) else arg

    for node in graph.nodes:
        if node.kind in COMPUTED:
            nodes.append(replace(node, args=tuple(map(source, node.args))))
        else:
            nodes.append(node)
        if node.name in prepared:
            continue
        if is_free(graph, node) and not _adds_a_store(graph, node, users):
            half[node.name] = node.inputs[0]
        if node.kind is Kind.VIEW and node.inputs[0] in half:
            before = next(n for n in reversed(nodes) if n.name == half[node.inputs[0]])
            name = f"{node.name}_half"
            while name in names:
                name += "_"
            if before.kind not in SELECTING and (view := _view_of(before, node, name)):
                names.add(name)
                half[node.name] = name
                nodes.append(view)
    return replace(graph, nodes=tuple(nodes)).live()


def _view_of(source: Node, view: Node, name: str) -> Node | None:
    """Return a node that reads `source` in the shape of `view`; None if a slice's elements have no
    strides in that shape."""
    if source.kind is not Kind.STRIDED:
        return replace(view, name=name, args=(source.name,), dtype=source.dtype)
    strides = reshaped(source.shape, source.strides, view.shape)
    if strides is None:
        return None
    text = f"{source.op}.reshape({list(view.shape)})"
    return replace(source, name=name, op=text, shape=view.shape, strides=strides)


def _adds_a_store(graph: Graph, cast: Node, users: dict[str, list[Node]]) -> bool:
    """Return True if a float32 copy is stored in any case, but its half-precision source is not."""

    def is_stored(name: str, except_for: str = "") -> bool:
        readers = [user for user in users[name] if user.name != except_for]
        return name in graph.outputs or any(
            user.kind not in COMPUTED and (user.kind is not Kind.VIEW or is_stored(user.name))
            for user in readers
        )

    (source,) = cast.inputs
    computed = graph.node(graph.owner(source)).kind in COMPUTED
    return computed and is_stored(cast.name) and not is_stored(source, cast.name)
