"""Generate C++ kernels of loops over time for the CPU.

Lanes are the elements of a channel over which the body sums (`elements`). A thread computes all
steps of a block of adjacent channels, with the states in the cache. Vectors run over the channels
of a block. The loop over lanes is around the vector loop, so that sums need no operations across a
vector.
"""

from __future__ import annotations

import math

from cuagent.expert.graph.graph import Node
from cuagent.expert.graph.storage import NestError
from cuagent.expert.kernel import Request
from cuagent.expert.loops.elements import Element, Target
from cuagent.expert.loops.spec import Result
from cuagent.expert.loops.text import LoopText

BLOCK = 64
"""Number of channels in a block if they have several lanes: a state of 16 lanes then takes 4
KiB.
"""
WIDE_BLOCK = 256
"""Number of channels in a block if they have one lane."""
LEAST_BLOCK = 16
MOST_TASKS = 64
"""Number of blocks at which they are not made smaller, because threads are balanced well enough."""
PARALLEL_ELEMENTS = 1 << 14
"""Number of updated state elements below which a parallel region costs more than it saves."""


Loop = tuple[int, bool]
"""(stage, has lanes): a C++ loop over the channels of a block, and over the lanes if the second is
True.
"""


class RowsKernel(LoopText):
    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.vector = self._vector_axis()
        extent = self.elements.extent(self.vector) if self.vector is not None else 1
        self.outer = [a for a in self.channels if a != self.vector]
        self.extent = extent
        self.tasks = math.prod(self.elements.extent(a) for a in self.outer)
        self._set_blocks(extent)
        self.lane_count = self.elements.lane_count
        self.stages = 1 + max((self.elements.elements[k].stage for k in self.needed), default=0)
        self.arrays = self._arrays()

    def _set_blocks(self, extent: int) -> None:
        """Choose the number of channels of a block."""
        block = BLOCK if self.lanes else WIDE_BLOCK
        while block > LEAST_BLOCK and self.tasks * math.ceil(extent / block) < MOST_TASKS:
            block //= 2
        self.block = min(block, extent)
        self.blocks = math.ceil(extent / self.block)

    def _vector_axis(self) -> int | None:
        """Return the channel axis along which most tensors are contiguous; None without
        channels.
        """
        score = dict.fromkeys(self.channels, 0)
        for k in self.needed:
            element = self.elements.elements[k]
            if element.kind != "load":
                continue
            slot = self.loop.slots[element.node.name]
            assert slot.leaf is not None
            strides = list(self.leaves[slot.leaf][1])
            if slot.dim is not None:
                strides.pop(slot.dim)
            for place, stride in zip(element.index, strides, strict=True):
                if place.axis in score and stride * place.scale == 1:
                    score[place.axis] += 1 + element.timed
        return max(
            self.channels, key=lambda a: (score[a], self.elements.extent(a), a), default=None
        )

    def home(self, position: int) -> Loop:
        """Return the loop in which the element at `position` is computed."""
        element = self.elements.elements[position]
        lane = self.is_lane(element)
        if element.kind == "sum":
            return element.stage - 1, True
        return element.stage, lane

    def is_inline(self, element: Element) -> bool:
        """Return True for elements that are computed once per block, because its channels share
        them.
        """
        return not element.carried and self.vector not in element.axes and element.kind != "sum"

    def _users(self) -> list[tuple[int, Loop]]:
        """Return each element that is read, with the C++ loop that reads it, for each read."""
        found = []
        for k in self.needed:
            loop = self.home(k)
            found += [(a, loop) for a in self.elements.elements[k].args if isinstance(a, int)]
        return found + [(target.element, loop) for target, loop in self._targets()]

    def _targets(self) -> list[tuple[Target, Loop]]:
        """Return each new state and each result of a step, with the C++ loop that stores it."""
        targets = [*self.elements.states, *(target for _, target, _ in self.outputs())]
        return [(target, self.loop_of(target)) for target in targets]

    def loop_of(self, target: Target) -> Loop:
        return self.elements.elements[target.element].stage, self._has_lanes(target)

    def _has_lanes(self, target: Target) -> bool:
        return any(p.axis in self.lanes for p in target.index)

    def _arrays(self) -> set[int]:
        """Return the positions of the elements that are stored in arrays, because another loop
        reads them.

        Sums and values that are the same in all steps are also stored.
        """
        found = set()
        for position, loop in self._users():
            element = self.elements.elements[position]
            if element.kind in ("state", "product") or self.is_inline(element):
                continue
            if not element.timed and element.kind == "load" and self._is_adjacent(element):
                continue
            if not element.timed or element.kind == "sum" or self.home(position) != loop:
                found.add(position)
        return found

    def _is_adjacent(self, element: Element) -> bool:
        """Return True if an element's loads for adjacent channels are adjacent in memory."""
        slot = self.loop.slots[element.node.name]
        assert slot.leaf is not None
        strides = self.leaves[slot.leaf][1]
        steps = [s for p, s in zip(element.index, strides, strict=True) if p.axis == self.vector]
        return steps == [1]

    def text(self) -> str:
        w = self.w
        self.head("pointwise.h", "algorithm")
        w()
        w.open(f'extern "C" void {self.request.name}({", ".join(self.parameters("__restrict__"))})')
        work = self.loop.steps * self.elements.channel_count * self.lane_count
        if work > PARALLEL_ELEMENTS and self.tasks * self.blocks > 1:
            w.pragma("omp parallel for schedule(static)")
        w.open(f"for (long task = 0; task < {self.tasks * self.blocks}; ++task)")
        self._task()
        w.close(2)
        return "\n".join(w.lines) + "\n"

    def _task(self) -> None:
        w = self.w
        self._declare_places()
        for k, target in enumerate(self.elements.states):
            self._open(self._has_lanes(target))
            w(f"{self.state(k)} = {self.first_value(k)};")
            self._close(self._has_lanes(target))
        self._compute_all(timed=False)
        w.open(f"for (long t = 0; t < {self.loop.steps}; ++t)")
        self._compute_all(timed=True)
        for k, target in enumerate(self.elements.states):
            if self.is_late(k):
                self._open(self._has_lanes(target))
                w(f"{self.state(k)} = {self.state(k, 'next')};")
                self._close(self._has_lanes(target))
        w.close()
        for node, target, result in self.outputs():
            state = self.state_with(target)
            if result.dim is None and state is not None:
                self._open(self._has_lanes(target))
                self.write(node, target, result, self.state(state))
                self._close(self._has_lanes(target))

    def _declare_places(self) -> None:
        """Declare the channel indices of the block, and the arrays for states and stored
        elements.
        """
        w, step = self.w, self.blocks
        w(f"const long start = task % {self.blocks} * {self.block};")
        w(f"const long count = std::min({self.block}l, {self.extent} - start);")
        for axis in reversed(self.outer):
            extent = self.elements.extent(axis)
            w(f"const long {self.axis(axis)} = task / {step} % {extent};")
            step *= extent
        for k, target in enumerate(self.elements.states):
            dimensions = self._dimensions(self._has_lanes(target))
            names = [f"state_{k}"] + ([f"next_{k}"] if self.is_late(k) else [])
            w(f"alignas(64) float {', '.join(name + dimensions for name in names)};")
        for position in sorted(self.arrays):
            dimensions = self._dimensions(self.is_lane(self.elements.elements[position]))
            w(f"alignas(64) {self.declared(position)} {self.name(position)}{dimensions};")

    def state(self, k: int, word: str = "state") -> str:
        return f"{word}_{k}[r][k]" if self._has_lanes(self.elements.states[k]) else f"{word}_{k}[k]"

    def state_with(self, target: Target) -> int | None:
        """Return the number of the state whose new value is the result `target`; None if there is
        none.
        """
        for k, state in enumerate(self.elements.states):
            if state.element == target.element and state.index == target.index:
                return k
        return None

    def product_value(self, position: int) -> str:
        """Raise NestError: this kernel has no products of states (`products_cpp.py` has)."""
        raise NestError(f"{self.request.name}: products of the state")

    def _compute_all(self, timed: bool) -> None:
        for stage in range(self.stages):
            for lane in (False, True):
                LoopWriter(self, (stage, lane), timed).write()

    def write(self, node: Node, target: Target, result: Result, value: str) -> None:
        guard = self.guards(target)
        line = self.store(node, target, result, value, "t")
        self.w(f"if ({guard}) {line}" if guard else line)

    def _dimensions(self, lane: bool) -> str:
        return (f"[{self.lane_count}]" if lane else "") + f"[{self.block}]"

    def is_late(self, state: int) -> bool:
        """Return True if a loop after the update of state number `state` still reads its old
        value.
        """
        home = self.loop_of(self.elements.states[state])
        name = self.loop.states[state]
        for position, loop in self._users():
            element = self.elements.elements[position]
            if element.kind == "state" and element.node.name == name and loop > home:
                return True
        return False

    def _open(self, lane: bool) -> None:
        """Open the C++ loop over the channels of a block, inside of a loop over the lanes if
        `lane`.
        """
        if lane:
            self.open_lanes()
        self.open_channels()

    def _close(self, lane: bool) -> None:
        self.w.close(1 + lane)

    def open_channels(self) -> None:
        self.w.pragma("omp simd")
        self.w.open("for (long k = 0; k < count; ++k)")
        if self.vector is not None:
            self.w(f"const long {self.axis(self.vector)} = start + k;")

    def open_lanes(self) -> None:
        self.w.open(f"for (long r = 0; r < {self.lane_count}; ++r)")
        step = 1
        for axis in reversed(self.lanes):
            extent = self.elements.extent(axis)
            self.w(f"const long {self.axis(axis)} = r / {step} % {extent};")
            step *= extent


class LoopWriter:
    """Generates one C++ loop over the channels of a block, which computes the values of one
    stage.
    """

    def __init__(self, kernel: RowsKernel, loop: Loop, timed: bool) -> None:
        self.kernel, self.loop, self.timed = kernel, loop, timed
        self.w, self.elements = kernel.w, kernel.elements.elements
        self.names: dict[int, str] = {}
        self.arrays = [k for k in sorted(kernel.arrays) if self._is_here(k)]
        self.sums = [k for k in self.arrays if self.elements[k].kind == "sum"]
        self.updates: list[int] = []
        self.results: list[tuple[Node, Target, Result]] = []
        if timed:
            states = enumerate(kernel.elements.states)
            self.updates = [k for k, t in states if kernel.loop_of(t) == loop]
            self.results = [
                (node, target, result)
                for node, target, result in kernel.outputs()
                if kernel.loop_of(target) == loop
                and not (result.dim is None and kernel.state_with(target) is not None)
            ]

    def _is_here(self, position: int) -> bool:
        element = self.elements[position]
        return self.kernel.home(position) == self.loop and element.timed == self.timed

    def _roots(self) -> list[int]:
        roots = [k for k in self.arrays if k not in self.sums]
        roots += [int(self.elements[k].args[0]) for k in self.sums]
        roots += [self.kernel.elements.states[k].element for k in self.updates]
        return roots + [target.element for _, target, _ in self.results]

    def write(self) -> None:
        roots, kernel, w = self._roots(), self.kernel, self.w
        if not roots:
            return
        lane = self.loop[1]
        chain = self._chain(roots)
        w.open("")
        for k in self.sums:
            w(f"for (long k = 0; k < count; ++k) {kernel.name(k)}[k] = 0.f;")
        inline = [k for k in chain if kernel.is_inline(self.elements[k])]
        for k in inline:
            if not kernel.is_lane(self.elements[k]):
                self._declare(k)
        if lane:
            kernel.open_lanes()
            for k in inline:
                if kernel.is_lane(self.elements[k]):
                    self._declare(k)
        kernel.open_channels()
        for k in chain:
            if k not in inline:
                self._declare(k)
        self._finish()
        w.close(2 + lane)

    def _chain(self, roots: list[int]) -> list[int]:
        """Return the elements that this loop computes, arguments first; it reads the others from
        arrays.
        """
        found: set[int] = set()
        stack = list(roots)
        while stack:
            k = stack.pop()
            if k in found:
                continue
            element = self.elements[k]
            if element.kind == "state":
                self.names[k] = self.kernel.state(self.kernel.loop.states.index(element.node.name))
            elif element.kind == "product":
                self.names[k] = self.kernel.product_value(k)
            elif k in self.kernel.arrays and (k in self.sums or not self._is_here(k)):
                dimensions = "[r][k]" if self.kernel.is_lane(element) else "[k]"
                self.names[k] = self.kernel.name(k) + dimensions
            else:
                found.add(k)
                stack += [a for a in element.args if isinstance(a, int)]
        return sorted(found)

    def _declare(self, k: int) -> None:
        kernel, element = self.kernel, self.elements[k]
        if element.kind == "load":
            value = kernel.load(element, "t")
        else:
            value = kernel.value(k, self.names)
        self.names[k] = f"v{k}"
        self.w(f"const {kernel.declared(k)} v{k} = {value};")

    def _finish(self) -> None:
        """Write the statements that store the loop's values, results and new states."""
        kernel, w = self.kernel, self.w
        for k in self.arrays:
            dimensions = "[r][k]" if kernel.is_lane(self.elements[k]) else "[k]"
            if k in self.sums:
                w(f"{kernel.name(k)}[k] += {self.names[int(self.elements[k].args[0])]};")
            else:
                w(f"{kernel.name(k)}{dimensions} = {self.names[k]};")
        for node, target, result in self.results:
            kernel.write(node, target, result, self.names[target.element])
        for k in self.updates:
            w(f"const float new_{k} = {self.names[kernel.elements.states[k].element]};")
        for k in self.updates:
            word = "next" if kernel.is_late(k) else "state"
            w(f"{kernel.state(k, word)} = new_{k};")
