"""Group each anchor (a scan, pool, scatter, ...) with the elementwise operations before and after
it.

One kernel computes a group. It computes operations before the anchor when it loads the anchor's
argument, and operations after the anchor when it stores the result. Invariant: no path of the graph
leaves a group and returns to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from cuagent.expert.graph.graph import COMPUTED, FLOATS, Graph, Kind, Node
from cuagent.expert.selections.groups import PLACES
from cuagent.expert.streaming.fuse import CHEAP
from cuagent.expert.streaming.group import MAX_LEAVES, Group, leaves_and_returns
from cuagent.expert.streaming.stages import COST

MAX_REPEATED_COST = 8
"""Largest cost of computing an element of an anchor's argument inside the anchor's kernel.

The unit is an addition (`streaming.stages.COST`). The limit applies to anchors that read an element
several times: a pool does so in each window that contains it.
"""

OWN_CONVOLUTION = "own F.conv"
"""Start of the text of a convolution that a generated kernel computes."""
PLACES_OF_LAST = (1, 2)
"""Dimensions of the places of an image in channels-last layout."""
COST_OF_CHOICE = 2
"""Cost, in additions, of a `where` by the index of an element in a depthwise convolution's
argument.

The argument is copied element by element. Reflected borders in two dimensions have eight such
choices; in a separate kernel their conditions are constant along its loops.
"""


def clusters(
    graph: Graph, family_of: Mapping[Kind, str], outside: frozenset[str]
) -> tuple[Group, ...]:
    """Return one group for each anchor: a node whose kind is a key of `family_of`.

    The value of `family_of` is the kernel family of the group. Nodes named in `outside` join no
    group.
    """
    users = graph.users()
    claimed: dict[str, Group] = {}
    groups = []
    for node in graph.nodes:
        if node.kind in family_of and node.name not in outside and node.op != PLACES:
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
    """Collects the names of the nodes that join one anchor's group (`members`)."""

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
        selects = anchor.kind is Kind.SELECTION
        once = anchor.kind in (Kind.SCAN, Kind.SCATTER) or selects
        self.limit = 1 << 30 if once else MAX_REPEATED_COST
        self._add_producers(anchor)
        if selects:
            self.members |= {u.name for u in users[anchor.name] if u.op == PLACES}
        grown = not selects
        while grown:
            grown = any(self._add_consumer(u) for m in list(self.members) for u in users[m])
        self._release()

    def _free(self, node: Node) -> bool:
        usable = node.kind is Kind.POINTWISE and node.name not in self.outside
        return usable and node.name not in self.claimed and node.name not in self.members

    def _add_producers(self, reader: Node) -> None:
        """Add the elementwise arguments of `reader`, a member, to the group if only members read
        them.
        """
        for name in reader.inputs:
            node = self.graph.node(name)
            exclusive = all(u.name in self.members for u in self.users[name])
            if not self._free(node) or not exclusive or name in self.graph.outputs:
                continue
            if reader is self.anchor and self._cost(name) > self.limit:
                continue
            if self.anchor.kind is Kind.DEPTHWISE and self._is_epilogue(node):
                continue
            if self._fits({name}):
                self.members.add(name)
                self._add_producers(node)

    def _is_epilogue(self, node: Node) -> bool:
        """Return True if the kernel of a convolution computes an elementwise value before it stores
        the image in channels-last layout.

        A depthwise kernel then loads vectors of channels.
        """
        image = self.graph.node(str(self.anchor.args[0])).shape
        while node.kind is Kind.POINTWISE and self.anchor.dims == PLACES_OF_LAST:
            whole = [n for n in map(self.graph.node, node.inputs) if n.shape == image]
            if len(whole) != 1 or len(self.users[whole[0].name]) > 1:
                return False
            (node,) = whole
        return node.op.startswith(OWN_CONVOLUTION)

    def _cost(self, name: str) -> int:
        """Return the cost of computing one element of `name` from stored tensors, in additions."""
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

    def _release(self) -> None:
        """Leave a cheap value to the kernels that read it, if its arguments are stored anyway.

        The maximum over channels of a pool's result and the sum of exponentials would otherwise
        read two tensors instead of one.
        """
        for node in reversed(self.graph.nodes):
            inner = [a for a in node.inputs if a in self.members]
            leaf = node.name in self.members and node.name != self.anchor.name and bool(inner)
            if not leaf or node.op not in CHEAP or node.name in self.graph.outputs:
                continue
            readers = self.users[node.name]
            outside = all(u.kind in COMPUTED and u.name not in self.members for u in readers)
            if outside and all(self._is_stored(name, node) for name in inner):
                self.members.discard(node.name)

    def _is_stored(self, name: str, reader: Node) -> bool:
        """Return True if a member's value is written to memory, though `reader` reads it, too."""
        others = (u for u in self.users[name] if u is not reader)
        return name in self.graph.outputs or any(u.name not in self.members for u in others)

    def _after_anchor(self) -> set[str]:
        """Return the names of the anchor and of all members that depend on it."""
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
