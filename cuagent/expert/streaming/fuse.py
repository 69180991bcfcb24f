"""Group pointwise and reduce nodes into kernels.

A group runs over one flat domain of `size` elements. Each node in it has one domain stride per
axis, so reshapes inside a group cost nothing. A row value (the result of a reduction) is a node
without the reduced axes. All reductions of a group run over the same axes.
Invariant: groups and the nodes outside them form no cycle; a node is in at most one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cuagent.expert.graph.graph import Graph, Kind, Node, Shape, contiguous_strides, reshaped

Span = tuple[int, int]
"""Domain stride and extent of a reduced axis."""
FEW_ROWS = 64
LONG_ROW = 1 << 16
"""Elements of a long row. A reduction over fewer than FEW_ROWS long rows is split over threads, and
its group may not contain element-wise nodes that read its result."""
MAX_LEAVES = 12
"""Largest number of tensors that one group may read."""


@dataclass(frozen=True)
class Group:
    """The nodes that one kernel computes, in order.

    `size` is the number of elements of the group's flat domain. `places` maps each node to the
    strides of its axes in this domain. `reduced` has the axes of the domain over which the
    reductions run.
    """

    nodes: tuple[Node, ...]
    places: dict[str, tuple[int, ...]]
    size: int
    reduced: tuple[Span, ...]
    outputs: tuple[str, ...]
    family: str = "streaming"
    """The family (see `cuagent.expert.families`) that generates the kernel."""

    @property
    def columns(self) -> int:
        """Number of elements in one row, over which a reduction runs."""
        return math.prod(extent for _, extent in self.reduced)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.size // self.columns


Step = Group | Node
"""A kernel or a library call."""


@dataclass
class _Draft:
    """A group that is being built; its fields are those of `Group`."""

    size: int
    places: dict[str, tuple[int, ...]] = field(default_factory=dict)
    reduced: tuple[Span, ...] | None = None
    claimed: Group | None = None
    """A group of another family, which no node joins."""

    def merged(self, other: _Draft) -> _Draft | None:
        both = {self.reduced, other.reduced} - {None}
        if self.size != other.size or len(both) > 1:
            return None
        return _Draft(self.size, self.places | other.places, both.pop() if both else None)


def fuse(
    graph: Graph,
    *,
    outside: frozenset[str] = frozenset(),
    claimed: Iterable[Group] = (),
    slices_count: bool = True,
) -> tuple[Step, ...]:
    """Return kernels and library calls in an executable order.

    Nodes in `outside` (those computed once from parameters) are in no step. Groups in `claimed`,
    of other families, become steps as they are. With `slices_count`, each slice of a tensor counts
    towards MAX_LEAVES: on a GPU its elements take registers.
    """
    return _Fuser(graph, outside, claimed, slices_count).run()


class _Fuser:
    """Greedy fusion in program order: a node joins the groups of its arguments if it can."""

    def __init__(
        self,
        graph: Graph,
        outside: frozenset[str],
        claimed: Iterable[Group],
        slices_count: bool = True,
    ) -> None:
        self.graph, self.slices_count = graph, slices_count
        self.outside = outside
        self.users = graph.users()
        self.draft_of: dict[str, _Draft] = {}
        for group in claimed:
            draft = _Draft(group.size, group.places, claimed=group)
            self.draft_of.update(dict.fromkeys(group.places, draft))

    def run(self) -> tuple[Step, ...]:
        for node in self.graph.nodes:
            if node.name in self.outside or node.name in self.draft_of:
                continue
            if node.kind in (Kind.POINTWISE, Kind.REDUCE, Kind.VIEW):
                self._place(node)
        for node in reversed(self.graph.nodes):
            self._postpone(node)
        return self._ordered()

    def _place(self, node: Node) -> None:
        # In order of preference: join the groups of all arguments, one of them, or a new group.
        found = {id(d): d for a in node.inputs if (d := self.draft_of.get(a))}
        drafts = [draft for draft in found.values() if draft.claimed is None]
        candidates = []
        if len(drafts) > 1:
            merged: _Draft | None = drafts[0]
            for draft in drafts[1:]:
                merged = merged.merged(draft) if merged else None
            candidates = [merged] if merged and self._agrees(merged) else []
        largest_first = sorted(drafts, key=lambda d: -d.size)
        if candidates == [] and len(drafts) > 1:
            candidates = [d for t in largest_first if (d := self._absorbed(t, drafts, node))]
        candidates += largest_first
        if node.kind is not Kind.VIEW:
            candidates.append(_Draft(self._own_domain(node)))
        for draft in candidates:
            joined = self._joined(draft, node)
            if joined is not None and not self._cycles(joined):
                for name in joined.places:
                    self.draft_of[name] = joined
                return

    def _absorbed(self, target: _Draft, drafts: list[_Draft], node: Node) -> _Draft | None:
        """Return `target` with the other groups merged into it, or None if one cannot be.

        A group can be merged if it has no reduction, fewer elements than `target` and no reader
        except `node`. Its arithmetic is then repeated for the elements of `target`, which costs
        little.
        """
        if node.kind is not Kind.POINTWISE:
            return None
        place = self._pointwise(target, node)
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
            moved = self._moved(small, node, place)
            if moved is None:
                return None
            merged = _Draft(merged.size, merged.places | moved, merged.reduced)
        return merged if self._agrees(merged) else None

    def _moved(
        self, small: _Draft, node: Node, place: tuple[int, ...]
    ) -> dict[str, tuple[int, ...]] | None:
        """Return places for the nodes of `small` that let `node` read them; None if none do.

        `place` is that of `node`: the stride of each of its axes in the domain into which `small`
        moves.
        """
        steps: dict[tuple[int, int], int] = {}
        for arg in node.inputs:
            if arg in small.places:
                shape = self.graph.node(arg).shape
                for n, step, to in _aligned(shape, small.places[arg], place):
                    if n > 1 and steps.setdefault((n, step), to) != to:
                        return None
        factors = {to // step for (_, step), to in steps.items()}
        moved = {}
        for name, at in small.places.items():
            spans = list(zip(self.graph.node(name).shape, at, strict=True))
            if len(factors) == 1:
                (factor,) = factors
                moved[name] = tuple(step * factor for step in at)
            elif all(n == 1 or (n, step) in steps for n, step in spans):
                moved[name] = tuple(steps[n, step] if n > 1 else 0 for n, step in spans)
            else:
                return None
        return moved

    def _postpone(self, node: Node) -> None:
        """Move a node to the only group that reads it if its arguments are in memory anyway.

        The node is then neither written nor read. Groups with reductions read their arguments
        several times, so nothing is moved into them.
        """
        source, readers = self.draft_of.get(node.name), self.users[node.name]
        if source is None or node.kind is not Kind.POINTWISE or len(readers) != 1:
            return
        target = self.draft_of.get(readers[0].name)
        if target is None or target is source or target.claimed or target.reduced:
            return
        own = [a for a in node.inputs if a in source.places]
        rest = {name: at for name, at in source.places.items() if name != node.name}
        whole = any(self.graph.node(n).kind is Kind.REDUCE for n in rest) or any(
            self.graph.node(n).size == source.size for n in rest
        )
        if source.claimed or node.name in self.graph.outputs or not own or not whole:
            return
        moved = self._moved(
            _Draft(source.size, {node.name: source.places[node.name]}),
            readers[0],
            target.places[readers[0].name],
        )
        read = {self._owner(a) for n in target.places for a in self.graph.node(n).inputs}
        more = sum(self.graph.node(a).size for a in node.inputs if self._owner(a) not in read)
        if moved is None or more > node.size or not all(self._is_stored(a, source) for a in own):
            return
        joined = _Draft(target.size, target.places | moved)
        if not self._agrees(joined) or self._leaves(joined) > MAX_LEAVES:
            return
        before = dict(self.draft_of)
        left = _Draft(source.size, rest, source.reduced)
        self.draft_of |= dict.fromkeys(rest, left) | dict.fromkeys(joined.places, joined)
        if self._cycles(joined) or self._cycles(left):
            self.draft_of = before

    def _owner(self, name: str) -> str:
        """Return the value whose memory a view, a slice or a window reads."""
        node = self.graph.node(name)
        while node.kind in (Kind.VIEW, Kind.STRIDED, Kind.WINDOW):
            node = self.graph.node(node.inputs[0])
        return node.name

    def _is_stored(self, name: str, draft: _Draft) -> bool:
        """Return True if a computed value is written to memory: another step reads it, or it is an
        output of the graph."""
        outside = [u for u in self.users[name] if self.draft_of.get(u.name) is not draft]
        is_value = self.graph.node(name).kind in (Kind.POINTWISE, Kind.REDUCE)
        return is_value and (bool(outside) or name in self.graph.outputs)

    def _agrees(self, draft: _Draft) -> bool:
        """Return True if every node reads its arguments where the group computes them.

        Two joined groups may fail this: the rows of one may be columns of the other.
        """
        for name, place in draft.places.items():
            node = self.graph.node(name)
            for arg in node.inputs:
                at = draft.places.get(arg)
                if at is not None and not _reads_in_place(node, place, self.graph.node(arg), at):
                    return False
        return True

    def _own_domain(self, node: Node) -> int:
        return self.graph.node(node.inputs[0]).size if node.kind is Kind.REDUCE else node.size

    def _joined(self, draft: _Draft, node: Node) -> _Draft | None:
        match node.kind:
            case Kind.VIEW:
                place = self._view(draft, node)
                reduced = draft.reduced
            case Kind.REDUCE:
                place, reduced = self._reduce(draft, node)
            case _:
                place, reduced = self._pointwise(draft, node), draft.reduced
        if place is None:
            return None
        joined = _Draft(draft.size, draft.places | {node.name: place}, reduced)
        fits = self._leaves(joined) <= MAX_LEAVES and self._splittable(joined)
        return joined if fits else None

    def _pointwise(self, draft: _Draft, node: Node) -> tuple[int, ...] | None:
        shape = node.shape
        place: list[int | None] = [None if n > 1 else 0 for n in shape]
        for arg in node.inputs:
            if arg not in draft.places:
                continue
            inner = self.graph.node(arg).shape
            for k, (n, stride) in enumerate(zip(inner, draft.places[arg], strict=True)):
                axis = k + len(shape) - len(inner)
                if n > 1 and place[axis] not in (None, stride):
                    return None
                if n > 1:
                    place[axis] = stride
        if node.size == draft.size:
            natural = contiguous_strides(shape)
            if all(p in (None, 0, s) for p, s in zip(place, natural, strict=True)):
                return tuple(s if n > 1 else 0 for n, s in zip(shape, natural, strict=True))
            return None
        if None in place:
            return None
        found = tuple(p for p in place if p is not None)
        # Two axes over the same part of the domain are an outer product, which has more elements.
        return found if overlapping(shape, found) is None else None

    def _view(self, draft: _Draft, node: Node) -> tuple[int, ...] | None:
        (arg,) = node.inputs
        return reshaped(self.graph.node(arg).shape, draft.places[arg], node.shape)

    def _reduce(
        self, draft: _Draft, node: Node
    ) -> tuple[tuple[int, ...] | None, tuple[Span, ...] | None]:
        (name,) = node.inputs
        arg = self.graph.node(name)
        place = draft.places.get(name, contiguous_strides(arg.shape))
        if arg.size != draft.size:
            return None, None
        spans = merged_spans((place[d], arg.shape[d]) for d in node.dims)
        if draft.reduced not in (None, spans):
            return None, None
        dropped = tuple(s for d, s in enumerate(place) if d not in node.dims)
        keepdim = len(node.shape) == len(arg.shape)
        zeroed = tuple(0 if d in node.dims else s for d, s in enumerate(place))
        return (zeroed if keepdim else dropped), spans

    def _leaves(self, draft: _Draft) -> int:
        names = {a for n in draft.places for a in self.graph.node(n).inputs} - set(draft.places)
        return len(names if self.slices_count else {self._owner(name) for name in names})

    def _splittable(self, draft: _Draft) -> bool:
        """Return False if the group reduces few long rows and reads the results per element."""
        columns = math.prod(n for _, n in draft.reduced or ())
        if draft.size // columns >= FEW_ROWS or columns < LONG_ROW:
            return True
        levels = levels_of([self.graph.node(n) for n in self._in_order(draft.places)])
        full = [n for n in draft.places if self.graph.node(n).size == draft.size]
        return all(levels[n] == 0 for n in full)

    def _in_order(self, names: Iterable[str]) -> list[str]:
        chosen = set(names)
        return [node.name for node in self.graph.nodes if node.name in chosen]

    def _cycles(self, draft: _Draft) -> bool:
        block_of = {name: other.places for name, other in self.draft_of.items()}
        return leaves_and_returns(set(draft.places), self.users, block_of)

    def _ordered(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        done: set[str] = set(self.outside)
        drafts = list({id(d): d for d in self.draft_of.values()}.values())
        pending: list[tuple[list[str], _Draft | None]] = []
        seen: set[int] = set()
        for node in self.graph.nodes:
            draft = self.draft_of.get(node.name)
            if draft is None:
                pending.append(([node.name], None))
            elif id(draft) not in seen:
                seen.add(id(draft))
                pending.append((self._in_order(draft.places), draft))
        assert len(seen) == len(drafts)
        while pending:
            ready = next((item for item in pending if self._ready(item[0], done)), None)
            assert ready is not None, "fusion made a cycle"
            pending.remove(ready)
            names, draft = ready
            inside = set(names)
            done |= inside
            node = self.graph.node(names[0])
            if draft is not None:
                steps.append(self._group(names, draft))
            elif node.name not in self.outside:
                steps.append(node)
        return tuple(steps)

    def _ready(self, names: list[str], done: set[str]) -> bool:
        available = done | set(names)
        return all(a in available for n in names for a in self.graph.node(n).inputs)

    def _group(self, names: list[str], draft: _Draft) -> Group:
        if draft.claimed is not None:
            return draft.claimed
        members = set(names)
        read_outside = (
            n
            for n in names
            if n in self.graph.outputs or any(u.name not in members for u in self.users[n])
        )
        outputs = tuple(dict.fromkeys(self._base(n, members) for n in read_outside))
        nodes = tuple(self.graph.node(n) for n in names)
        return Group(nodes, dict(draft.places), draft.size, draft.reduced or (), outputs)

    def _base(self, name: str, members: set[str]) -> str:
        """Return the member that owns the memory of a view, which other kernels read."""
        node = self.graph.node(name)
        while node.kind is Kind.VIEW and node.inputs[0] in members:
            node = self.graph.node(node.inputs[0])
        return node.name


def leaves_and_returns(
    members: set[str], users: Mapping[str, Sequence[Node]], block_of: Mapping[str, Iterable[str]]
) -> bool:
    """Return True if a path leaves the group `members` and returns to it.

    `block_of` maps a node to the members of its own group, which together count as one node.
    """
    stack = [u.name for m in members for u in users[m] if u.name not in members]
    seen: set[str] = set()
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        block = set(block_of.get(name, (name,)))
        seen |= block
        for member in block:
            for user in users[member]:
                if user.name in members:
                    return True
                stack.append(user.name)
    return False


def overlapping(shape: Shape, place: tuple[int, ...]) -> tuple[int, int] | None:
    """Return two axes of a node that run over the same part of the domain; None if there are none.

    `place` has the domain stride of each axis.
    """
    spans = sorted(
        (p, p * n, k) for k, (n, p) in enumerate(zip(shape, place, strict=True)) if n > 1
    )
    for (_, end, before), (start, _, after) in pairwise(spans):
        if start < end:
            return before, after
    return None


def _aligned(
    shape: Shape, place: tuple[int, ...], to: tuple[int, ...]
) -> Iterable[tuple[int, int, int]]:
    """Return extent, stride and the consumer's stride of each axis, aligned at the last axis."""
    return zip(shape, place, to[len(to) - len(shape) :], strict=True)


def _reads_in_place(node: Node, place: tuple[int, ...], arg: Node, at: tuple[int, ...]) -> bool:
    """Return True if `node` reads each element of `arg` at the index where `arg` is computed.

    `place` and `at` have the domain strides of the axes of `node` and of `arg`.
    """
    shape, to = arg.shape, place
    match node.kind:
        case Kind.VIEW:
            viewed = reshaped(shape, at, node.shape)
            if viewed is None:
                return False
            shape, at = node.shape, viewed
        case Kind.REDUCE:
            kept = [k for k in range(len(shape)) if k not in node.dims]
            to = tuple(place[k] for k in kept) if len(node.shape) == len(shape) else place
            shape, at = tuple(shape[k] for k in kept), tuple(at[k] for k in kept)
    return all(a == b for n, a, b in _aligned(shape, at, to) if n > 1)


def merged_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Merge adjacent axes, outermost first, and drop axes of extent 1."""
    merged: list[Span] = []
    for stride, extent in sorted((s for s in spans if s[1] > 1), reverse=True):
        if merged and merged[-1][0] == stride * extent:
            merged[-1] = (stride, merged[-1][1] * extent)
        else:
            merged.append((stride, extent))
    return tuple(merged)


def levels_of(nodes: Iterable[Node]) -> dict[str, int]:
    """Return the number of reductions, within these nodes, on the longest path to each node."""
    levels: dict[str, int] = {}
    for node in nodes:
        before = max((levels.get(a, 0) for a in node.inputs), default=0)
        levels[node.name] = before + (node.kind is Kind.REDUCE)
    return levels
