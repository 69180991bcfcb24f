"""Divide the lanes, channels and values of a loop over time among the threads of a CUDA kernel.

Lanes are the elements of a channel over which the body sums (`elements`).
"""

from __future__ import annotations

import math

from cuagent.expert.graph.graph import FLOATS, Node
from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import Request
from cuagent.expert.loops.elements import Target
from cuagent.expert.loops.spec import Result
from cuagent.expert.loops.text import LoopText
from cuagent.expert.streaming.cuda_text import headers_of

MOST_ITEMS = 16
"""Largest number of lanes per thread, whose states are in registers."""
THREADS = 128
"""Number of threads in a block."""
BUSY_THREADS = 132 * 192
"""Number of threads that keep an H200 busy; below it lanes are divided among more threads."""
PREFETCHED = 48
"""Largest number of registers per thread for tensors of the next steps."""


class ThreadLayout(LoopText):
    """Division of a loop's work: `width` threads per channel, each with `items` lanes.

    Values without lanes may be computed for a batch of `width` steps together, one step in each
    thread of a channel: the elements in `before` ahead of the batch, those in `after` behind it.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        if self.elements.has_products:
            raise NestError(f"{request.name}: products of the state")
        lanes, channels = self.elements.lane_count, self.elements.channel_count
        self.lane_count, self.channel_count = lanes, channels
        busy = BUSY_THREADS * request.threads // 192 if request.threads else BUSY_THREADS
        width = 1
        while width < min(32, lanes) and (
            channels * width < busy or math.ceil(lanes / width) > MOST_ITEMS
        ):
            width *= 2
        self.width, self.items = width, math.ceil(lanes / width)
        if self.items > MOST_ITEMS:
            raise NestError(f"{request.name}: too many lanes")
        self.groups = THREADS // width
        self.includes = headers_of(request.group, self.tensors_read)
        sizes = [base.size for base, _, _ in self.leaves] + [n.size for n, _, _ in self.outputs()]
        self.integer = "long" if max(sizes) >= 1 << 31 else "int"
        self.order = self._channel_order()
        self.loads = [
            k
            for k in self.needed
            if self.elements.elements[k].kind == "load" and self.elements.elements[k].timed
        ]
        self.before, self.after = self._spread() if width > 1 else (set(), set())
        self.own = self._own_results() if width > 1 else []
        self.kept = self._kept()
        self.set_registers()

    def set_registers(self) -> None:
        """Set the number of steps in a batch (`ahead`), and the tensors (`loads`) that are loaded
        for a batch.
        """
        self.loads = [k for k in self.loads if k not in self.before]
        registers = sum(self.items if self.has_lanes(k) else 1 for k in self.loads)
        if self.width > 1:
            self.ahead = self.width
            if self.ahead * registers > PREFETCHED:
                self.loads = []
            return
        self.ahead = next((n for n in (8, 4, 2) if n * registers <= PREFETCHED), 1)
        self.ahead = min(self.ahead, self.loop.steps)

    def _users(self) -> dict[int, set[int]]:
        """Return the positions of the elements that read each element.

        -1 stands for a new state, and for a result that is stored in each step.
        """
        users: dict[int, set[int]] = {k: set() for k in self.needed}
        for k in self.needed:
            for a in self.elements.elements[k].args:
                if isinstance(a, int):
                    users[a].add(k)
        for target in self.elements.states:
            users[target.element].add(-1)
        for _, target, result in self.outputs():
            if result.dim is None or self._target_lanes(target):
                users[target.element].add(-1)
        return users

    def _spread(self) -> tuple[set[int], set[int]]:
        """Return the positions of the elements that are computed before, and after, each batch of
        steps.

        In these computations each thread of a channel has one step of the batch.
        """
        before: set[int] = set()
        after: set[int] = set()
        users = self._users()
        for k in self.needed:
            element = self.elements.elements[k]
            floating = element.node.dtype in FLOATS or element.kind != "load"
            if element.timed and not element.carried and not self.has_lanes(k) and floating:
                inner = [a for a in element.args if isinstance(a, int)]
                timed = [a for a in inner if self.elements.elements[a].timed]
                if all(a in before for a in timed) and element.kind != "sum":
                    before.add(k)
        for k in reversed(self.needed):
            element = self.elements.elements[k]
            inside = element.carried and element.kind == "operation" and not self.has_lanes(k)
            if inside and users[k] <= after:
                after.add(k)
        return before, after

    def _own_results(self) -> list[tuple[Node, Target, Result]]:
        """Return the results that the threads of a channel store after a batch, each thread one
        step.
        """
        return [
            (node, target, result)
            for node, target, result in self.outputs()
            if result.dim is not None and not self._target_lanes(target)
        ]

    def _kept(self) -> list[int]:
        """Return the positions of the values that each step stores for the computations after the
        batch.
        """
        read = {a for k in self.after for a in self.elements.elements[k].args if isinstance(a, int)}
        read |= {target.element for _, target, _ in self.own}
        timed = {k for k in read if self.elements.elements[k].timed}
        return sorted(timed - self.after - self.before)

    def has_lanes(self, position: int) -> bool:
        return self.is_lane(self.elements.elements[position])

    def _channel_order(self) -> list[int]:
        """Return the channel axes; the axis with the smallest memory strides is last."""
        strides: dict[int, list[int]] = {a: [] for a in self.channels}
        for k in self.needed:
            element = self.elements.elements[k]
            if element.kind != "load" or not element.timed:
                continue
            slot = self.loop.slots[element.node.name]
            assert slot.leaf is not None
            steps = list(self.leaves[slot.leaf][1])
            if slot.dim is not None:
                steps.pop(slot.dim)
            for place, stride in zip(element.index, steps, strict=True):
                if place.axis in strides and stride:
                    strides[place.axis].append(stride)
        return sorted(self.channels, key=lambda a: (-min(strides[a], default=1 << 62), a))

    def _target_lanes(self, target: Target) -> bool:
        return any(p.axis in self.lanes for p in target.index)
