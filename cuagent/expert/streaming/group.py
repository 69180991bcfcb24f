"""Groups: the nodes that one kernel computes, each with its place in a flat domain.

A group runs over one flat domain of `size` elements. Each node in it has one domain stride per
axis, so reshapes inside a group cost nothing. A row value (the result of a reduction) is a node
without the reduced axes. All reductions of a group run over the same axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cuagent.expert.graph.graph import Kind, Node

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


def levels_of(nodes: Iterable[Node]) -> dict[str, int]:
    """Return the number of reductions, within these nodes, on the longest path to each node."""
    levels: dict[str, int] = {}
    for node in nodes:
        before = max((levels.get(a, 0) for a in node.inputs), default=0)
        levels[node.name] = before + (node.kind is Kind.REDUCE)
    return levels
