"""Group each anchor with the elementwise operations before and after it.

The kernel computes operations before the anchor when it loads the anchor's argument, and operations
after the anchor when it stores the result. Invariant: no path of the graph leaves a group and
returns to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from cuagent.expert.graph.graph import FLOATS, Graph, Kind, Node
from cuagent.expert.streaming.group import MAX_LEAVES, Group, leaves_and_returns
from cuagent.expert.streaming.stages import COST

MAX_REPEATED_COST = 8
"""Largest cost (see `streaming.stages.COST`) of computing one element of an anchor's argument, for
anchors that read an element several times: a pool does so in each window that contains it."""

COST_OF_CHOICE = 2
"""Cost of a choice by the place of an element, for depthwise convolutions, which copy their
argument element by element. Reflected borders in two dimensions have eight choices, which a kernel
of their own makes constant along its loops."""


def clusters(
    graph: Graph, family_of: Mapping[Kind, str], outside: frozenset[str]
) -> tuple[Group, ...]:
    """Return one group for each anchor: a node whose kind is a key of `family_of`.

    `family_of` gives the family of the group. Nodes named in `outside` join no group.
    """
    users = graph.users()
    claimed: dict[str, Group] = {}
    groups = []
    for node in graph.nodes:
        if node.kind in family_of and node.name not in outside:
            members = _Cluster(graph, users, claimed, outside, node).members
            group = _group(graph, users, members, node, family_of[node.kind])
            claimed.update(dict.fromkeys(members, group))
            groups.append(group)
    return tuple(groups)


def _group(
    graph: Graph, users: Mapping[str, list[Node]], members: set[str], anchor: Node, family: str
) -> Group:
    nodes = tuple(n for n in graph.nodes if n.name in members)
    outputs = tuple(
        n.name
        for n in nodes
        if n.name in graph.outputs or any(u.name not in members for u in users[n.name])
    )
    return Group(nodes, {n.name: () for n in nodes}, anchor.size, (), outputs, family)


class _Cluster:
    """The names of one group's members, grown from its anchor."""

    def __init__(
        self,
        graph: Graph,
        users: Mapping[str, list[Node]],
        claimed: Mapping[str, Group],
        outside: frozenset[str],
        anchor: Node,
    ) -> None:
        self.graph, self.users, self.claimed, self.outside = graph, users, claimed, outside
        self.anchor = anchor
        self.members = {anchor.name}
        once = anchor.kind in (Kind.SCAN, Kind.SCATTER)
        self.limit = 1 << 30 if once else MAX_REPEATED_COST
        self._add_producers(anchor)
        grown = True
        while grown:
            grown = any(self._add_consumer(u) for m in list(self.members) for u in users[m])

    def _free(self, node: Node) -> bool:
        usable = node.kind is Kind.POINTWISE and node.name not in self.outside
        return usable and node.name not in self.claimed and node.name not in self.members

    def _add_producers(self, reader: Node) -> None:
        """Add the elementwise arguments of the member `reader` that only members read."""
        for name in reader.inputs:
            node = self.graph.node(name)
            exclusive = all(u.name in self.members for u in self.users[name])
            if not self._free(node) or not exclusive or name in self.graph.outputs:
                continue
            if reader is self.anchor and self._cost(name) > self.limit:
                continue
            if self._fits({name}):
                self.members.add(name)
                self._add_producers(node)

    def _cost(self, name: str) -> int:
        """Return the cost of computing an element of a value from tensors in memory."""
        node = self.graph.node(name)
        if node.kind is not Kind.POINTWISE:
            return 0
        by_place = any(self.graph.node(a).kind is Kind.INSIDE for a in node.inputs)
        copied = self.anchor.kind is Kind.DEPTHWISE
        own = COST_OF_CHOICE if by_place and copied else COST.get(node.op, 1)
        return own + sum(self._cost(a) for a in node.inputs)

    def _add_consumer(self, node: Node) -> bool:
        same = node.shape == self.anchor.shape and node.dtype in (*FLOATS, "bool")
        after = self._after_anchor()
        if not same or not self._free(node) or not set(node.inputs) & after:
            return False
        if not self._fits({node.name}):
            return False
        self.members.add(node.name)
        self._add_producers(node)
        return True

    def _after_anchor(self) -> set[str]:
        """Return the members that depend on the anchor, and the anchor."""
        found = {self.anchor.name}
        for node in self.graph.nodes:
            if node.name in self.members and set(node.inputs) & found:
                found.add(node.name)
        return found

    def _fits(self, added: set[str]) -> bool:
        members = self.members | added
        read = {a for m in members for a in self.graph.node(m).inputs} - members
        block_of = {name: group.places for name, group in self.claimed.items()}
        few = len(read) <= MAX_LEAVES
        return few and not leaves_and_returns(members, self.users, block_of)
