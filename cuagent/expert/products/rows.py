"""Copy operands of products whose rows or matrices torch cannot read in place (CUDA).

torch flattens only a contiguous argument of a linear layer to a matrix. For other ones it
multiplies a batch of matrices and adds the bias in a second pass. For 2048 x 2 permuted rows of 768
features that was a batch of 2048 products with two rows each: 2.7 ms on an H200, and 0.13 as one
product. Batches of matrices without a common distance are copied by torch element by element, and a
generated product does not read them. Here all layers that read the same rows share one copy.
"""

from __future__ import annotations

from dataclasses import replace

from cuagent.expert.edits import prepared_names
from cuagent.expert.gains import moves_vectors
from cuagent.expert.graph.graph import (
    Graph,
    Kind,
    Node,
    contiguous_strides,
    reshaped,
    unused_name,
)
from cuagent.expert.products.operands import CALLS, COPIED

LEAST_TOGETHER = 128
"""Least number of rows of each product of a batch that is as fast as one product without a bias:
the side of a tile of the library."""


def copy_rows(graph: Graph, device: str, keep: frozenset[str]) -> Graph:
    """Return the graph in which products read contiguous copies of such operands.

    A copy is a kernel if its rows are whole vectors and no node of its origin is in `keep`, else a
    call of torch.
    """
    copies = _Copies(graph, keep)
    return copies.result() if device == "cuda" else graph


class _Copies:
    def __init__(self, graph: Graph, keep: frozenset[str]) -> None:
        self.graph, self.keep = graph, keep
        self.names = {node.name for node in graph.nodes}
        self.nodes: list[Node] = []
        self.made: dict[Node, str] = {}
        """Name of the copy of each view; names and texts are left out of the keys."""

    def result(self) -> Graph:
        prepared = prepared_names(self.graph)
        for node in self.graph.nodes:
            known = node.kind is not Kind.LIBRARY or node.name in prepared
            args = () if known else self._operands(node)
            self.nodes.append(replace(node, args=(*args, *node.args[2:])) if args else node)
        return replace(self.graph, nodes=tuple(self.nodes)).live() if self.made else self.graph

    def _operands(self, node: Node) -> tuple[str, ...]:
        """Return the two operands of a product, with copies; () if both are read in place."""
        if len(node.args) < 2 or not all(isinstance(a, str) for a in node.args[:2]):
            return ()
        left, right = (self.graph.node(str(arg)) for arg in node.args[:2])
        if node.op.startswith("F.linear({0}, {1}"):
            slow = _has_few_rows(node, left, right)
            return (self._stored(left, left), right.name) if slow else ()
        if node.op not in CALLS:
            return ()
        return tuple(self._copied(x) if _is_scattered(x) else x.name for x in (left, right))

    def _copied(self, source: Node) -> str:
        """Return the name of the contiguous copy of a strided view; if columns are adjacent, of a
        view of the copy of the transposed matrices."""
        if source.strides[-1] == 1 or source.strides[-2] != 1:
            return self._stored(source, source)
        swapped = _transposed(source, self._name(f"{source.name}_swapped"))
        copy = self._stored(swapped, source)
        stored = replace(swapped, strides=contiguous_strides(swapped.shape), op="{0}")
        view = _transposed(stored, self._name(f"{source.name}_columns"))
        self.nodes.append(replace(view, args=(copy,), offset=0))
        return view.name

    def _stored(self, view: Node, named: Node) -> str:
        """Return the name of the contiguous copy of a view, which gets the name of `named`."""
        place = replace(view, name="", op="", origin="")
        if place in self.made:
            return self.made[place]
        name = self.made[place] = self._name(f"{named.name}_rows")
        shape, origin = view.shape, view.origin
        copy = Node(name, Kind.POINTWISE, "cast", (view.name,), shape, view.dtype, origin=origin)
        self.nodes += [view] if view is not named else []
        read = replace(self.graph, nodes=(*self.graph.nodes, *self.nodes))
        if origin in self.keep or not moves_vectors(copy, read):
            copy = replace(copy, kind=Kind.LIBRARY, op=COPIED)
        self.nodes.append(copy)
        return name

    def _name(self, word: str) -> str:
        name = unused_name(word, self.names)
        self.names.add(name)
        return name


def _transposed(source: Node, name: str) -> Node:
    """Return the view of matrices with their last two dimensions exchanged."""
    *shape, rows, columns = source.shape
    *steps, down, across = source.strides
    return replace(
        source, name=name, op=f"{source.op}.transpose(-1, -2)", shape=(*shape, columns, rows),
        strides=(*steps, across, down),
    )  # fmt: skip


def _has_few_rows(node: Node, source: Node, weight: Node) -> bool:
    """Return True if the argument of a linear layer has no common stride of its rows and torch
    would not multiply them as fast."""
    if source.kind is not Kind.STRIDED or len(source.shape) < 3 or source.size == 0:
        return False
    *outer, depth = source.shape
    if reshaped(source.shape, source.strides, (source.size // depth, depth)) is not None:
        return False
    # torch copies the rows itself, for each layer, if the weight is a trainable parameter.
    is_copied = weight.kind is Kind.PARAMETER or (len(node.args) > 2 and source.strides[-1] == 1)
    return is_copied or outer[-1] < LEAST_TOGETHER


def _is_scattered(operand: Node) -> bool:
    """Return True for a batch of matrices in a view that have no common distance."""
    if operand.kind is not Kind.STRIDED or len(operand.shape) < 4 or operand.size == 0:
        return False
    batch = (operand.size // (operand.shape[-1] * operand.shape[-2]),)
    return reshaped(operand.shape[:-2], operand.strides[:-2], batch) is None
