"""Groups: the nodes that one kernel computes, each with its position in the group's domain.

A group's kernel runs over one flat index range of `size` elements, the domain. Each node has one
stride per axis in the domain, so reshapes inside a group cost nothing. A row consists of the
elements that a reduction joins to one value. A row value (the result of a reduction) is a node
without the reduced axes. All reductions of a group run over the same axes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cuagent.expert.graph.graph import Kind, Node

Span = tuple[int, int]
"""(stride in the domain, extent) of a reduced axis."""
FEW_ROWS = 64
LONG_ROW = 1 << 16
"""Number of elements from which on a row is long.

A reduction over fewer than FEW_ROWS long rows is split over threads or blocks. Its group contains
elements that depend on its result only if a CUDA schedule computes them with several blocks per
row.
"""
MAX_LEAVES = 12
"""Largest number of tensors that one group may read."""


@dataclass(frozen=True)
class Group:
    """Nodes of a graph that one kernel computes, in order.

    `size` is the number of elements of the group's domain. `places` maps each node to the strides
    of its axes in the domain. `reduced` has the axes of the domain over which the reductions run.
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
        """Number of elements of one row, over which a reduction runs."""
        return math.prod(extent for _, extent in self.reduced)

    @property
    def rows(self) -> int:
        """Number of rows, and so of results of a reduction."""
        return self.size // self.columns


Step = Group | Node
"""One step of a method: a group, computed by a kernel, or a single node, computed by torch."""


def leaves_and_returns(
    members: set[str], users: Mapping[str, Sequence[Node]], block_of: Mapping[str, Iterable[str]]
) -> bool:
    """Return True if a path of the graph leaves the group `members` and returns to it.

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
    """Return each node's level: the number of reductions on the longest path to it within
    `nodes`.
    """
    levels: dict[str, int] = {}
    for node in nodes:
        before = max((levels.get(a, 0) for a in node.inputs), default=0)
        levels[node.name] = before + (node.kind is Kind.REDUCE)
    return levels
