"""Fuse pointwise and reduce nodes into groups; one kernel computes a group.

Invariant: groups and the nodes outside them form no cycle; a node is in at most one group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from cuagent.expert.graph.graph import ITEM_BYTES, Graph, Kind, Node, contiguous_strides
from cuagent.expert.streaming.group import (
    FEW_ROWS,
    LONG_ROW,
    MAX_LEAVES,
    Group,
    Step,
    leaves_and_returns,
    levels_of,
)
from cuagent.expert.streaming.ordering import in_order, ordered
from cuagent.expert.streaming.places import (
    Draft,
    Place,
    agrees,
    moved_places,
    pointwise_place,
    with_node,
)
from cuagent.expert.streaming.stages import COST, EXPENSIVE

LOOKUPS_OF_A_LEAF = 4
"""Number of looked-up parts of a concatenation that count as one tensor that a kernel reads: each
thread loads one of them."""
CHEAP = frozenset({"add", "sub", "mul", "maximum", "minimum"})
"""Operations that a kernel computes again in each pass over a row rather than read their result."""


def fuse(
    graph: Graph,
    *,
    outside: frozenset[str] = frozenset(),
    claimed: Iterable[Group] = (),
    slices_count: bool = True,
    fills: Callable[[Group], bool] | None = None,
) -> tuple[Step, ...]:
    """Return the steps that compute a graph, in an executable order: groups, and single nodes for
    torch.

    Nodes in `outside` (those computed once from parameters) are in no step. Groups in `claimed`, of
    other families, become steps unchanged. With `slices_count`, each slice of a tensor counts
    towards MAX_LEAVES: on a GPU its elements take registers. `fills`: True for a group of few long
    rows that one kernel computes well, though elements depend on reductions of their row; without
    it, none.
    """
    claimed, divided = tuple(claimed), frozenset(n.name for n in graph.nodes)
    if fills is None:
        return _Fuser(graph, outside, claimed, slices_count, divided).run()
    divided = frozenset()
    while True:
        steps = _Fuser(graph, outside, claimed, slices_count, divided).run()
        groups = [s for s in steps if isinstance(s, Group) and s.family == "streaming"]
        waiting = [g for g in groups if _waits_for_rows(g.nodes, g.size, g.columns)]
        slow = {node.name for group in waiting if not fills(group) for node in group.nodes}
        if slow <= divided:
            return steps
        divided |= slow


def _waits_for_rows(nodes: Iterable[Node], size: int, columns: int) -> bool:
    """Return True if a group reduces few long rows and also reads the results for each element."""
    if size // columns >= FEW_ROWS or columns < LONG_ROW:
        return False
    nodes = list(nodes)
    levels = levels_of(nodes)
    return any(levels[n.name] > 0 for n in nodes if n.size == size)


def _is_of_rows(graph: Graph, places: dict[str, Place], target: Draft) -> bool:
    """Return True if no value with these places depends on the elements of a row of `target`."""
    spans = [(stride, stride * count) for stride, count in target.reduced or ()]
    return not any(
        n > 1 and at < end and start < at * n
        for name, place in places.items()
        for n, at in zip(graph.node(name).shape, place, strict=True)
        for start, end in spans
    )


class _Fuser:
    """Greedy fusion in program order: a node joins the groups of its arguments if possible."""

    def __init__(
        self,
        graph: Graph,
        outside: frozenset[str],
        claimed: Iterable[Group],
        slices_count: bool,
        divided: frozenset[str],
    ) -> None:
        self.graph, self.slices_count = graph, slices_count
        self.outside, self.divided = outside, divided
        self.users = graph.users()
        self.draft_of: dict[str, Draft] = {}
        for group in claimed:
            draft = Draft(group.size, group.places, claimed=group)
            self.draft_of.update(dict.fromkeys(group.places, draft))

    def run(self) -> tuple[Step, ...]:
        """Put each node into a group, move nodes to their reader's group if that is cheaper, order
        the groups.
        """
        for node in self.graph.nodes:
            if node.name in self.outside or node.name in self.draft_of:
                continue
            if node.kind in (Kind.POINTWISE, Kind.REDUCE, Kind.VIEW):
                self._place(node)
        for node in reversed(self.graph.nodes):
            self._postpone(node)
        if self.slices_count:
            for node in reversed(self.graph.nodes):
                self._sink(node)
            for node in reversed(self.graph.nodes):
                self._postpone(node)
        return ordered(self.graph, self.draft_of, self.outside)

    def _place(self, node: Node) -> None:
        """Add a node to the joined groups of all its arguments, else to one of these groups, else
        to a new one.
        """
        found = {id(d): d for a in node.inputs if (d := self.draft_of.get(a))}
        drafts = [draft for draft in found.values() if draft.claimed is None]
        candidates = []
        if len(drafts) > 1:
            merged: Draft | None = drafts[0]
            for draft in drafts[1:]:
                merged = merged.merged(draft) if merged else None
            candidates = [merged] if merged and agrees(self.graph, merged) else []
        largest_first = sorted(drafts, key=lambda d: -d.size)
        if candidates == [] and len(drafts) > 1:
            candidates = [d for t in largest_first if (d := self._absorbed(t, drafts, node))]
        candidates += largest_first
        if node.kind is not Kind.VIEW:
            candidates.append(Draft(self._own_domain(node)))
        for draft in candidates:
            joined = self._joined(draft, node)
            if joined is not None and not self._cycles(joined):
                for name in joined.places:
                    self.draft_of[name] = joined
                return

    def _absorbed(self, target: Draft, drafts: list[Draft], node: Node) -> Draft | None:
        """Return `target` with all other groups of `drafts` merged into it; None if one cannot be
        merged.

        A group can be merged if it has no reduction, fewer elements than `target` and no reader
        except `node`. Its arithmetic is then repeated for the elements of `target`, which costs
        little.
        """
        if node.kind is not Kind.POINTWISE:
            return None
        place = pointwise_place(self.graph, target, node)
        if place is None:
            return None
        merged = target
        for small in drafts:
            if small is target:
                continue
            members = set(small.places) | {node.name}
            users = {u.name for n in small.places for u in self.users[n]}
            outputs = members & set(self.graph.outputs) - {node.name}
            if small.reduced or not users <= members or outputs:
                return None
            moved = moved_places(self.graph, small, node, place)
            if moved is None:
                return None
            merged = Draft(merged.size, merged.places | moved, merged.reduced)
        return merged if agrees(self.graph, merged) else None

    def _postpone(self, node: Node) -> None:
        """Move a node from its group to the group of its only reader, if its arguments are stored
        anyway.

        The node's value is then neither written to memory nor read. Groups with reductions read
        their arguments several times, so only a node of CHEAP that adds no argument is moved into
        them, and on a GPU a node that is computed once for each row.
        """
        source, readers = self.draft_of.get(node.name), self.users[node.name]
        if source is None or node.kind is not Kind.POINTWISE or len(readers) != 1:
            return
        target = self.draft_of.get(readers[0].name)
        if target is None or target is source or target.claimed:
            return
        own = [a for a in node.inputs if a in source.places]
        rest = {name: at for name, at in source.places.items() if name != node.name}
        whole = any(self.graph.node(n).kind is Kind.REDUCE for n in rest) or any(
            self.graph.node(n).size == source.size for n in rest
        )
        if source.claimed or node.name in self.graph.outputs or not own or not whole:
            return
        moved = self._moved(node, source, readers[0], target)
        read = {self.graph.owner(a) for n in target.places for a in self.graph.node(n).inputs}
        more = sum(self.graph.node(a).size for a in node.inputs if self.graph.owner(a) not in read)
        once = self.slices_count and moved is not None and _is_of_rows(self.graph, moved, target)
        if target.reduced and not once and (more or node.op not in CHEAP):
            return
        if moved is None or more > node.size or not all(self._is_stored(a, source) for a in own):
            return
        joined = Draft(target.size, target.places | moved, target.reduced)
        if not agrees(self.graph, joined) or self._leaves(joined) > MAX_LEAVES:
            return
        before = dict(self.draft_of)
        left = Draft(source.size, rest, source.reduced)
        self.draft_of |= dict.fromkeys(rest, left) | dict.fromkeys(joined.places, joined)
        if self._cycles(joined) or self._cycles(left):
            self.draft_of = before

    def _sink(self, node: Node) -> None:
        """Move the whole group of a node into the only group that reads it, if the group's values
        need no more bytes than they have.

        A launch and the stored values are saved. The reader computes the values once for each of
        its rows, or, if it has no reduction, repeats cheap arithmetic for its elements.
        """
        source = self.draft_of.get(node.name)
        if source is None or source.claimed or source.reduced:
            return
        readers = {u.name: u for n in source.places for u in self.users[n]}
        readers = {k: u for k, u in readers.items() if k not in source.places}
        targets = {id(self.draft_of.get(k)): self.draft_of.get(k) for k in readers}
        target = next(iter(targets.values()), None)
        if len(targets) > 1 or target is None or target.claimed:
            return
        if set(source.places) & set(self.graph.outputs) or self._adds_bytes(source, target):
            return
        found = [
            moved_places(self.graph, source, u, target.places[k])
            for k, u in readers.items()
            if u.kind is not Kind.REDUCE
        ]
        if len(found) < len(readers) or any(m != found[0] for m in found):
            return
        if found[0] is not None and self._may_sink(source, found[0], target):
            self._join(Draft(target.size, target.places | found[0], target.reduced))

    def _may_sink(self, source: Draft, moved: dict[str, Place], target: Draft) -> bool:
        """Return True if the reader's kernel computes the values of `source` at little cost, with
        vectors of the same width."""
        varies = any(
            n > 1 and at == 1
            for name, place in moved.items()
            for n, at in zip(self.graph.node(name).shape, place, strict=True)
        )
        inputs = {a for n in source.places for a in self.graph.node(n).inputs}
        sliced = any(self.graph.node(a).kind in (Kind.STRIDED, Kind.WINDOW) for a in inputs)
        if varies and sliced:
            return False
        if target.reduced:
            return _is_of_rows(self.graph, moved, target)
        costs = (COST.get(self.graph.node(n).op, 1) for n in source.places)
        return 2 * source.size <= target.size and all(cost < EXPENSIVE for cost in costs)

    def _join(self, joined: Draft) -> None:
        """Replace the groups of the nodes of `joined` by it, if one kernel can compute it."""
        if not agrees(self.graph, joined) or self._leaves(joined) > MAX_LEAVES:
            return
        before = dict(self.draft_of)
        self.draft_of |= dict.fromkeys(joined.places, joined)
        if self._cycles(joined):
            self.draft_of = before

    def _adds_bytes(self, source: Draft, target: Draft) -> bool:
        """Return True if the values of `source` are computed from more bytes, which `target` does
        not read, than their writing and reading takes."""

        def read(draft: Draft) -> set[str]:
            names = (a for n in draft.places for a in self.graph.node(n).inputs)
            return {self.graph.owner(a) for a in names if a not in draft.places}

        def sizes(names: set[str]) -> int:
            nodes = [self.graph.node(name) for name in names]
            return sum(n.size * ITEM_BYTES.get(n.dtype, 8) for n in nodes)

        stored = {self.graph.owner(n) for n in source.places if self._is_stored(n, source)}
        # A value's rows may be a slice of its owner, of which only the slice is read.
        most = source.size * 8
        added = sum(min(sizes({name}), most) for name in read(source) - read(target))
        return added > 2 * sizes(stored)

    def _moved(
        self, node: Node, source: Draft, reader: Node, target: Draft
    ) -> dict[str, Place] | None:
        """Return the place of a node of `source` in `target`, where `reader` reads it; None if it
        has none.
        """
        if reader.kind is not Kind.REDUCE:
            alone = Draft(source.size, {node.name: source.places[node.name]})
            return moved_places(self.graph, alone, reader, target.places[reader.name])
        strides = contiguous_strides(node.shape)
        natural = tuple(s if n > 1 else 0 for n, s in zip(node.shape, strides, strict=True))
        return {node.name: natural} if node.size == target.size else None

    def _is_stored(self, name: str, draft: Draft) -> bool:
        """Return True if the value `name` of group `draft` is written to memory.

        Another step reads it, or it is an output of the graph.
        """
        outside = [u for u in self.users[name] if self.draft_of.get(u.name) is not draft]
        owner = self.graph.owner(name)
        is_value = owner in draft.places and (
            self.graph.node(owner).kind in (Kind.POINTWISE, Kind.REDUCE)
        )
        return is_value and (bool(outside) or name in self.graph.outputs)

    def _own_domain(self, node: Node) -> int:
        return self.graph.node(node.inputs[0]).size if node.kind is Kind.REDUCE else node.size

    def _joined(self, draft: Draft, node: Node) -> Draft | None:
        """Return `draft` with `node` added; None if one kernel could not compute the result."""
        found = with_node(self.graph, draft, node)
        if found is None or self._leaves(found) > MAX_LEAVES or not self._splittable(found):
            return None
        return found

    def _leaves(self, draft: Draft) -> int:
        names = {a for n in draft.places for a in self.graph.node(n).inputs} - set(draft.places)
        if not self.slices_count:
            return len({self.graph.owner(name) for name in names})
        lookups = {name for name in names if self._is_part_looked_up(name)}
        inside = {name for name in names if self.graph.node(name).kind is Kind.INSIDE}
        return len(names - lookups - inside) + len(lookups) // LOOKUPS_OF_A_LEAF

    def _is_part_looked_up(self, name: str) -> bool:
        node = self.graph.node(name)
        source = self.graph.node(self.graph.owner(name))
        return node.kind is Kind.WINDOW and source.kind is Kind.GATHER

    def _splittable(self, draft: Draft) -> bool:
        """Return False if a group with a node of `divided` waits for the results of few long rows.

        Such rows are split over threads, which cannot wait for the whole row.
        """
        columns = math.prod(n for _, n in draft.reduced or ())
        if self.divided.isdisjoint(draft.places):
            return True
        nodes = (self.graph.node(n) for n in in_order(self.graph, draft.places))
        return not _waits_for_rows(nodes, draft.size, columns)

    def _cycles(self, draft: Draft) -> bool:
        block_of = {name: other.places for name, other in self.draft_of.items()}
        return leaves_and_returns(set(draft.places), self.users, block_of)
