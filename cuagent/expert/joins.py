"""Place the arguments of a concatenation in its memory, so that the kernels that compute them write
them there.

A concatenation of the first arguments of another one is a part of its memory too: the features of a
dense block grow in one tensor. Arguments that no kernel writes, or that torch reads, are copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from cuagent.expert.convolutions.convolution import Convolution
from cuagent.expert.graph.graph import (
    ITEM_BYTES,
    JOIN,
    Graph,
    Kind,
    Node,
    Part,
    contiguous_strides,
)
from cuagent.expert.method import Computed, Steps
from cuagent.expert.streaming.group import Group

READERS = ("streaming", "pooling", "depthwise")
"""Families of kernels that read and write any strides."""
ALIGNMENT = 16
"""Bytes of which the offset of a part is a multiple, because kernels access vectors."""
LARGE = 1 << 31
"""Number of elements of a concatenation from which on kernels would need wider indices."""


def is_join(node: Node) -> bool:
    """Return True for a concatenation into whose memory kernels may write."""
    return node.kind is Kind.LIBRARY and node.op.startswith(JOIN) and bool(node.dims)


def parts_of(steps: Steps, graph: Graph) -> tuple[dict[str, Part], frozenset[str]]:
    """Return (location of each part of a concatenation, origins of concatenations without one)."""
    joins = [node for node in graph.nodes if is_join(node)]
    if not joins:
        return {}, frozenset()
    found = _Parts(graph, steps)
    for join in reversed(joins):
        found.place(join)
    return found.parts, frozenset(j.origin for j in joins if j.name not in found.parts)


@dataclass
class _Parts:
    graph: Graph
    steps: Steps
    parts: dict[str, Part] = field(default_factory=dict)
    contents: dict[str, dict[str, int]] = field(default_factory=dict)
    """Offsets of all arguments, copied ones too, in the memory of each concatenation that has its
    own memory."""

    def __post_init__(self) -> None:
        self.step_of = {
            name: step for step in self.steps if isinstance(step, Computed) for name in step.places
        }
        self.users = self.graph.users()

    def place(self, join: Node) -> None:
        """Place a concatenation, and those of its arguments that kernels write."""
        known = self.parts.get(join.name)
        inner = join.name not in self.graph.outputs and self._is_read_by_kernels(join.name)
        if known is None and inner:
            known = self._beginning(join)
        if known is not None:
            self.parts[join.name] = known
            return
        strides = contiguous_strides(join.shape)
        if join.size >= LARGE or not (self._writes(join, strides) or self._grows(join)):
            return
        self.parts[join.name] = Part(join.name, 0, strides)
        self._fill(join, Part(join.name, 0, strides))

    def _beginning(self, join: Node) -> Part | None:
        """Return where the arguments of a concatenation already lie side by side, in order."""
        (dim,) = join.dims
        for owner, contents in self.contents.items():
            whole = self.graph.node(owner)
            same = whole.dims == join.dims and whole.dtype == join.dtype
            rest = [n for d, n in enumerate(whole.shape) if d != dim]
            if not same or rest != [n for d, n in enumerate(join.shape) if d != dim]:
                continue
            strides = contiguous_strides(whole.shape)
            first = contents.get(join.inputs[0])
            aligned = first is not None and first * ITEM_BYTES[join.dtype] % ALIGNMENT == 0
            if (
                aligned
                and first is not None
                and all(
                    contents.get(name) == first + start
                    for name, start in self._starts(join, strides)
                )
            ):
                return Part(owner, first, strides)
        return None

    def _starts(self, join: Node, strides: tuple[int, ...]) -> Iterator[tuple[str, int]]:
        """Yield each argument of a concatenation with its first element's offset."""
        (dim,), start = join.dims, 0
        for name in join.inputs:
            yield name, start * strides[dim]
            start += self.graph.node(name).shape[dim]

    def _fill(self, join: Node, at: Part) -> None:
        """Place the arguments of a concatenation that is located at `at`."""
        contents = self.contents.setdefault(at.owner, {})
        for name, start in self._starts(join, at.strides):
            contents.setdefault(name, at.offset + start)
            node = self.graph.node(name)
            if name in self.parts or not self._may_be_part(node, at, start):
                continue
            self.parts[name] = Part(at.owner, at.offset + start, at.strides)
            if is_join(node):
                self._fill(node, self.parts[name])

    def _writes(self, join: Node, strides: tuple[int, ...]) -> bool:
        """Return True if a kernel can write an argument of a concatenation in place, or an argument
        is a concatenation itself."""
        at = Part(join.name, 0, strides)
        return any(
            name not in self.parts and self._may_be_part(self.graph.node(name), at, start)
            for name, start in self._starts(join, strides)
        )

    def _grows(self, join: Node) -> bool:
        """Return True if another concatenation has the first arguments of `join`.

        Each argument is then copied once, although torch computes all of them.
        """
        return any(
            is_join(node)
            and len(node.inputs) < len(join.inputs)
            and node.inputs == join.inputs[: len(node.inputs)]
            and self._is_read_by_kernels(node.name)
            for node in self.graph.nodes
        )

    def _may_be_part(self, node: Node, at: Part, start: int) -> bool:
        """Return True if a value can be stored `start` elements behind the location `at`."""
        aligned = (at.offset + start) * ITEM_BYTES[node.dtype] % ALIGNMENT == 0
        same = node.dtype == self.graph.node(at.owner).dtype and node.name not in self.graph.outputs
        if not (aligned and same and self._is_read_by_kernels(node.name)):
            return False
        return is_join(node) or self._is_written_by_kernel(node, at.strides)

    def _is_written_by_kernel(self, node: Node, strides: tuple[int, ...]) -> bool:
        step = self.step_of.get(node.name)
        if isinstance(step, Convolution):
            plain = node.name not in step.rows and not step.is_copy
            after = step.pool.anchor.shape if step.pool else step.node.shape
            # The kernel computes one stride from channel to channel, as in a contiguous result.
            own = contiguous_strides(node.shape)
            if step.last:
                lines = strides[1] == strides[2] * node.shape[2] and strides[3] == 1
                return plain and node.shape == after and lines
            return plain and node.shape == after and strides[1:] == own[1:]
        if not isinstance(step, Group) or node.name not in step.outputs:
            return False
        vectors = zip(strides, contiguous_strides(node.shape), strict=True)
        # Vectors of up to 8 elements stay aligned.
        aligned = all(new % math.gcd(old, 8) == 0 for new, old in vectors)
        return step.family == "streaming" or (step.family in READERS and aligned)

    def _is_read_by_kernels(self, name: str) -> bool:
        """Return True if only kernels for any strides, and concatenations, read a value."""
        for user in self.users[name]:
            step = self.step_of.get(user.name)
            if step is None and user.kind is Kind.VIEW and user.name not in self.graph.outputs:
                if any(is_join(reader) for reader in self.users[user.name]):
                    return False
                if not self._is_read_by_kernels(user.name):
                    return False
                continue
            reads = isinstance(step, Convolution) or (
                isinstance(step, Group) and step.family in READERS
            )
            if not reads and not is_join(user):
                return False
            if user.kind is Kind.VIEW and self._is_flattened(user):
                return False
        return True

    def _is_flattened(self, view: Node) -> bool:
        """Return True if a view joins the samples of its argument with other dimensions."""
        return view.shape[:1] != self.graph.node(view.inputs[0]).shape[:1]
