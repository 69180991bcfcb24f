"""Write the elements of a group's values as C++ expressions: loads and elementwise operations.

The C++ and CUDA generators of anchored families use it. An index is a tuple of C++ expressions, one
for each dimension. A value of fewer dimensions is broadcast, as in torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from cuagent.expert.graph.graph import (
    INTEGERS,
    Graph,
    Kind,
    Node,
    Operand,
    Shape,
)
from cuagent.expert.graph.storage import NestError, storage
from cuagent.expert.streaming.expressions import (
    TYPES,
    computed_type,
    expression,
    identifier,
    narrowed,
    number,
    widened,
)
from cuagent.expert.streaming.group import Group
from cuagent.expert.streaming.text import Writer

Index = tuple[str, ...]
NUMBERS = {Kind.INSIDE, Kind.INDEX}
"""Kinds of nodes whose elements are computed from the index, without memory."""


class Values:
    """Emits C++ declarations of variables, each with one element of a tensor that a fused group of
    operators computes. An element that has a variable is not computed again.

    `fresh` forgets all variables, when their C++ scope ends.
    """

    def __init__(self, graph: Graph, group: Group, anchor: Node, w: Writer) -> None:
        self.graph, self.group, self.anchor, self.w = graph, group, anchor, w
        self.nodes = {node.name: node for node in group.nodes}
        self.declared: dict[tuple[str, Index], str] = {}
        self.slices = 0
        self.result = "result"
        """Name of the C++ variable with the anchor's result."""

    @property
    def tensors_read(self) -> dict[str, str]:
        """dtype of each tensor in memory that the group reads, in order of first use."""
        found: dict[str, str] = {}
        for node in self.group.nodes:
            for name in node.inputs:
                if name not in self.nodes:
                    owners = owners_of(self.graph, self.graph.node(name))
                    found |= {base.name: base.dtype for base in owners}
        return found

    def fresh(self) -> None:
        self.declared = {}

    def at(self, operand: Operand, index: Index) -> str:
        """Return the C++ expression of a value's element at `index`; declare a variable for it if
        needed.

        `index` refers to the shape of the anchor or of the anchor's argument.
        """
        if not isinstance(operand, str):
            return number(operand)
        if operand == self.anchor.name:
            return self.result
        node = self._node(operand)
        index = _broadcast(index, node.shape)
        key = (operand, index)
        if key in self.declared:
            return self.declared[key]
        if node.kind in NUMBERS:
            return self._element(node, index)
        if operand in self.nodes:
            value = expression(node, [self._argument(node, a, index) for a in node.args])
        else:
            value = self._element(node, index)
        word = f"{identifier(operand)}_{len(self.declared)}"
        self.w(f"const {computed_type(node.dtype)} {word} = {value};")
        self.declared[key] = word
        return word

    def _argument(self, node: Node, arg: Operand, index: Index) -> str:
        whole = any(self._node(a).dtype in INTEGERS for a in (node.name, *node.inputs))
        return self.at(arg, index) if isinstance(arg, str) else number(arg, whole)

    def _node(self, name: str) -> Node:
        return self.nodes.get(name) or self.graph.node(name)

    def _element(self, node: Node, index: Index) -> str:
        """Return the expression that loads a node's element, or computes it from the index."""
        match node.kind:
            case Kind.INSIDE:
                low, high = node.window
                place = index[node.dims[0]]
                return f"({place} >= {low} && {place} < {high})"
            case Kind.INDEX:
                return f"static_cast<float>(static_cast<int>({index[node.dims[0]]}))"
            case Kind.WINDOW:
                (dim,), (low, high) = node.dims, node.window
                place, inner = index[dim], self.graph.node(node.inputs[0])
                if inner.kind is Kind.GATHER:
                    raise NestError(f"{inner.name} is a gather in a window")
                moved = (*index[:dim], minus(place, low), *index[dim + 1 :])
                element = self._element(inner, _broadcast(moved, inner.shape))
                return f"({place} >= {low} && {place} < {high} ? {element} : 0)"
            case Kind.GATHER:
                return self._gathered(node, index)
        base, strides, offset = storage(self.graph, node)
        if base.name in self.nodes:
            raise NestError(f"{node.name} is a view inside its group")
        return widened(f"{identifier(base.name)}[{address(index, strides, offset)}]", base.dtype)

    def _gathered(self, node: Node, index: Index) -> str:
        """Declare the slice number of a gather, and return the C++ expression of an element in that
        slice.
        """
        (dim,), (table, places) = node.dims, map(self._node, node.inputs)
        end = dim + len(places.shape)
        wraps = "true" if node.spec.wraps else "false"
        word = f"slice_{self.slices}"
        self.slices += 1
        place = self._element(places, _broadcast(index[dim:end], places.shape))
        self.w(f"const long {word} = checked_slice<{node.spec.extent}, {wraps}>({place});")
        inside = (*index[:dim], f"slice_or_first({word})", *index[end:])
        return f"nan_if({word} < 0, {self._element(table, inside)})"

    def store(self, name: str, index: Index) -> None:
        """Write the C++ statement that stores the element of output `name` at `index`."""
        node = self.nodes[name]
        place = address(index, self.graph.strides(name), 0)
        value = narrowed(self.at(name, index), node.dtype)
        self.w(f"{identifier(name)}_out[{place}] = {value};")

    def stores(self, index: Index) -> None:
        for name in self.group.outputs:
            self.store(name, index)

    def parameters(self) -> list[str]:
        """Return the launcher's C++ parameters: outputs first, then the tensors that are read."""
        outputs = [f"{TYPES[self.nodes[n].dtype]}* {identifier(n)}_out" for n in self.group.outputs]
        return outputs + [
            f"const {TYPES[t]}* {identifier(n)}" for n, t in self.tensors_read.items()
        ]


def owners_of(graph: Graph, node: Node) -> list[Node]:
    """Return the nodes whose memory contains a value's elements.

    For a gather they are the table and the indices; empty if the elements are computed from the
    index.
    """
    while node.kind is Kind.WINDOW:
        node = graph.node(node.inputs[0])
    if node.kind is Kind.GATHER:
        return [storage(graph, graph.node(name))[0] for name in node.inputs]
    return [] if node.kind in NUMBERS else [storage(graph, node)[0]]


def _broadcast(index: Index, shape: Shape) -> Index:
    used = index[len(index) - len(shape) :]
    return tuple(i if n > 1 else "0" for i, n in zip(used, shape, strict=True))


def minus(place: str, low: int) -> str:
    """Return the C++ expression `place - low`."""
    return place if low == 0 else f"{place} - {low}"


def address(index: Index, strides: Sequence[int], offset: int) -> str:
    """Return the C++ expression of an element's index in memory: indices times strides, plus the
    offset.
    """
    terms = []
    for place, step in zip(index, strides, strict=True):
        if step and place != "0":
            word = place if place.isidentifier() or step == 1 else f"({place})"
            terms.append(word if step == 1 else f"{word} * {step}")
    if offset or not terms:
        terms.append(str(offset))
    return " + ".join(terms)


def flattened(graph: Graph, group: Group, anchor: Node) -> tuple[Graph, Group, Node]:
    """Return a scan's graph, group and anchor with all shapes merged to three dimensions.

    These are the dimensions before the scanned one, the scanned one, and the dimensions after it.
    The arguments are returned unchanged if an operand is broadcast or not contiguous.
    """
    (dim,) = anchor.dims
    shape = anchor.shape
    members = {node.name for node in group.nodes}
    leaves = {a: graph.node(a) for node in group.nodes for a in node.inputs if a not in members}
    views = (Kind.STRIDED, Kind.WINDOW, Kind.GATHER, *NUMBERS)
    plain = all(n.shape == shape and n.kind not in views for n in (*leaves.values(), *group.nodes))
    if not plain or any(storage(graph, n)[0].kind is Kind.STRIDED for n in leaves.values()):
        return graph, group, anchor
    new_shape = (math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    nodes = {n.name: replace(n, shape=new_shape) for n in group.nodes}
    nodes[anchor.name] = replace(nodes[anchor.name], dims=(1,))
    for leaf in leaves.values():
        base = storage(graph, leaf)[0]
        if base.name not in leaves or base is leaf:
            nodes[base.name] = replace(base, kind=Kind.INPUT, args=(), shape=new_shape)
        if base is not leaf:
            nodes[leaf.name] = Node(
                leaf.name, Kind.VIEW, "view", (base.name,), new_shape, leaf.dtype
            )
    flat = replace(graph, nodes=tuple(nodes.values()))
    flat_group = replace(group, nodes=tuple(nodes[n.name] for n in group.nodes))
    return flat, flat_group, nodes[anchor.name]
