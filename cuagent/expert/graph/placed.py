"""Values of the graph that `layouts` makes, and views of them in another order of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cuagent.expert.graph.graph import (
    Graph,
    Kind,
    Node,
    Shape,
    contiguous_strides,
    reshaped,
    unused_name,
)
from cuagent.expert.graph.orders import Order, permuted


@dataclass
class Placed:
    """Nodes of the new graph, with the order in memory of each value of the old graph."""

    graph: Graph
    """The old graph."""
    nodes: list[Node] = field(default_factory=list)
    by_name: dict[str, Node] = field(default_factory=dict)
    known: dict[str, tuple[str, Order]] = field(default_factory=dict)
    """Node in the new graph of each node of the old one, and the order of the old node's
    dimensions in it."""
    views: dict[tuple[str, Order], str] = field(default_factory=dict)
    origin: str = ""

    def _add(self, node: Node) -> str:
        self.nodes.append(node)
        self.by_name[node.name] = node
        return node.name

    def _new(self, hint: str) -> str:
        return unused_name(hint, {*self.by_name, *(n.name for n in self.graph.nodes)})

    def _copied(self, name: str, origin: str, order: Order = ()) -> str:
        """Add a copy of a value in another order."""
        source = self._to(name, order)
        node = self.by_name[source]
        copy = self._new(f"{name}_copy")
        work = origin or f"{name}_copy"
        return self._add(
            Node(copy, Kind.POINTWISE, "cast", (source,), node.shape, node.dtype, origin=work)
        )

    def _to(self, name: str, order: Order) -> str:
        """Return a node with a value's elements in the given order of dimensions."""
        found, current = self.known[name]
        if current == order:
            return found
        key = (name, order)
        if key not in self.views:
            self.views[key] = self._viewed(found, current, order)
        return self.views[key]

    def _viewed(self, found: str, current: Order, order: Order) -> str:
        node = self.by_name[found]
        rank = len(node.shape)
        now, then = current or tuple(range(rank)), order or tuple(range(rank))
        move = tuple(now.index(d) for d in then)
        shape = permuted(node.shape, move)
        name = self._new(f"{found}_{'contiguous' if not order else 'moved'}")
        moved = replace(node, name=name, shape=shape, order=())
        if node.kind in (Kind.INSIDE, Kind.INDEX):
            return self._add(replace(moved, dims=tuple(move.index(d) for d in node.dims)))
        if node.kind is Kind.WINDOW:
            inner = self._viewed(node.inputs[0], current, order)
            dims = tuple(move.index(d) for d in node.dims)
            return self._add(replace(moved, args=(inner,), dims=dims))
        if [d for d in move if node.shape[d] > 1] == [d for d in range(rank) if node.shape[d] > 1]:
            return self._add(self._view_of(name, node, shape))
        if node.kind is Kind.STRIDED:
            text = f"{node.op}.permute({list(move)})"
            return self._add(replace(moved, op=text, strides=permuted(node.strides, move)))
        strides = permuted(contiguous_strides(node.shape), move)
        return self._add(self._strided(name, node, f"{{0}}.permute({list(move)})", shape, strides))

    def _view_of(self, name: str, node: Node, shape: Shape) -> Node:
        if node.kind is Kind.STRIDED:
            place = reshaped(node.shape, node.strides, shape)
            assert place is not None
            return replace(
                node, name=name, shape=shape, strides=place, op=f"{node.op}.view({list(shape)})"
            )
        return Node(name, Kind.VIEW, "view", (node.name,), shape, node.dtype, origin=self.origin)

    def _strided(
        self, name: str, base: Node, op: str, shape: Shape, strides: Sequence[int], offset: int = 0
    ) -> Node:
        return Node(
            name, Kind.STRIDED, op, (base.name,), shape, base.dtype, origin=self.origin,
            contiguous=False, strides=tuple(strides), offset=offset,
        )  # fmt: skip
