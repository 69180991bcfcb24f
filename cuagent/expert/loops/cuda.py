"""Generate CUDA kernels of loops over time.

A thread, or a group of adjacent threads that share a channel's lanes, takes one channel through all
steps with its states in registers. Adjacent groups have adjacent channels. The tensors of the next
steps are loaded before the current steps are computed. Sums over lanes are warp shuffles.
Values without lanes, before and after the states (softplus of delta, a gate), are divided among the
threads of a group: each computes them for one of the next steps.
Not covered: few channels and many steps, for which a scan in chunks has more parallel work.
"""

from __future__ import annotations

import math

from cuagent.expert.graph.graph import FLOATS, Node
from cuagent.expert.kernel import KernelCall, Request, cuda_call
from cuagent.expert.loops.elements import Target
from cuagent.expert.loops.spec import Result
from cuagent.expert.loops.text import LoopText
from cuagent.expert.streaming.cuda_text import headers_of
from cuagent.expert.streaming.nest import NestError

MOST_ITEMS = 16
"""Largest number of lanes of one thread: their states are in registers."""
THREADS = 128
"""Threads in a block."""
BUSY_THREADS = 132 * 192
"""Threads that keep an H200 busy; lanes are split among threads up to this number."""
PREFETCHED = 48
"""Registers for the values of the next steps."""


def generate(request: Request) -> KernelCall:
    """Return the kernel of a loop. Raises NestError for a state with too many elements."""
    kernel = _Kernel(request)
    return cuda_call(request, kernel.text(), kernel.tensors_read, kernel.includes)


class _Kernel(LoopText):
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
        """Choose the number of steps whose tensors are loaded together, and these tensors."""
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
        """Return the elements that read each element; -1 for a state or a result within a step."""
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
        """Return the elements without lanes to compute before a batch of steps, and after it."""
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
        """Return the results that each thread of a group writes for another step."""
        return [
            (node, target, result)
            for node, target, result in self.outputs()
            if result.dim is not None and not self._target_lanes(target)
        ]

    def _kept(self) -> list[int]:
        """Return the values of a step that a thread stores for the operations after the steps."""
        read = {a for k in self.after for a in self.elements.elements[k].args if isinstance(a, int)}
        read |= {target.element for _, target, _ in self.own}
        timed = {k for k in read if self.elements.elements[k].timed}
        return sorted(timed - self.after - self.before)

    def has_lanes(self, position: int) -> bool:
        return self.is_lane(self.elements.elements[position])

    def _channel_order(self) -> list[int]:
        """Return the channel axes, the one with the smallest strides of results last."""
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

    def text(self) -> str:
        w, name = self.w, self.request.name
        self.head(*self.includes)
        w()
        parameters = self.parameters("__restrict__")
        bounds = f"__launch_bounds__({THREADS})"
        w.open(f"static __global__ void {bounds} {name}_device({', '.join(parameters)})")
        self._places()
        self._invariants()
        self._steps()
        self._last_results()
        w.close()
        w()
        plain = self.parameters("")
        arguments = ", ".join(p.split()[-1] for p in plain)
        w.open(f'extern "C" void {name}({", ".join(plain)}, cudaStream_t stream)')
        grid = math.ceil(self.channel_count / self.groups)
        w(f"{name}_device<<<{grid}, {THREADS}, 0, stream>>>({arguments});")
        w.close()
        return "\n".join(w.lines) + "\n"

    def _places(self) -> None:
        """Write the indices of the thread's channel, and its states.

        Threads without a channel compute the last one, because all threads of a warp shuffle.
        """
        w, count = self.w, self.channel_count
        w(f"constexpr int WIDTH = {self.width}, ITEMS = {self.items}, AHEAD = {self.ahead};")
        w(f"const int group = blockIdx.x * {self.groups} + threadIdx.x / WIDTH;")
        w(f"const int channel = group < {count} ? group : {count - 1};")
        w("const int lane = threadIdx.x % WIDTH;")
        if self.before:
            w("const int first = (threadIdx.x & 31) - lane;")
        if any(not self._target_lanes(t) for _, t, _ in self.outputs()):
            w(f"const bool writes = group < {count} && lane == 0;")
        step = 1
        for axis in reversed(self.order):
            extent = self.elements.extent(axis)
            whole = "channel" if step == 1 else f"channel / {step}"
            step *= extent
            last = axis == self.order[0]
            value = whole if last else f"{whole} % {extent}"
            w(f"const int {self.axis(axis)} = {value};")
        for k, target in enumerate(self.elements.states):
            lanes = self._target_lanes(target)
            w(f"float state_{k}{'[ITEMS]' if lanes else ''};")
            self._open_items(lanes)
            w(f"state_{k}{'[item]' if lanes else ''} = {self.first_value(k)};")
            w.close()

    def _target_lanes(self, target: Target) -> bool:
        return any(p.axis in self.lanes for p in target.index)

    def _open_items(self, lanes: bool) -> None:
        """Open a block, over the lanes of the thread if `lanes` is True."""
        w = self.w
        if not lanes:
            w.open("")
            return
        w.pragma("unroll")
        w.open("for (int item = 0; item < ITEMS; ++item)")
        self._lane()

    def _lane(self) -> None:
        """Write the indices of a lane; a lane past the last one reads the last one's values."""
        place = "lane + item * WIDTH" if self.width > 1 else "item"
        if self._is_uneven():
            place = f"{place} < {self.lane_count} ? {place} : {self.lane_count - 1}"
        self.w(f"const int r = {place};")
        step = 1
        for axis in reversed(self.lanes):
            extent = self.elements.extent(axis)
            whole = "r" if step == 1 else f"r / {step}"
            step *= extent
            last = axis == self.lanes[0]
            self.w(f"const int {self.axis(axis)} = {whole if last else f'{whole} % {extent}'};")

    def _is_uneven(self) -> bool:
        return self.width * self.items != self.lane_count

    def _exists(self) -> str:
        """Return the condition that a lane of a thread exists."""
        if not self._is_uneven():
            return ""
        return f"lane + item * WIDTH < {self.lane_count}"

    def _name(self, position: int) -> str:
        """Return the expression of an element's value inside of a loop over items."""
        element = self.elements.elements[position]
        if element.kind == "state":
            k = self.loop.states.index(element.node.name)
            return f"state_{k}" + ("[item]" if self._target_lanes(self.elements.states[k]) else "")
        lanes = "[item]" if self.has_lanes(position) else ""
        if position in self.before:
            return f"s{position}"
        if position in self.loads:
            return f"now_{position}[ahead]{lanes}"
        return f"v{position}{lanes}"

    def _names(self) -> dict[int, str]:
        return {k: self._name(k) for k in self.needed}

    def _declaration(self, position: int, prefix: str = "v", counts: str = "") -> None:
        lanes = "[ITEMS]" if self.has_lanes(position) else ""
        self.w(f"{self.declared(position)} {prefix}{position}{counts}{lanes};")

    def _invariants(self) -> None:
        """Write the values that all steps share."""
        for k in self.needed:
            element = self.elements.elements[k]
            if not element.timed:
                self._compute(k)

    def _compute(self, position: int) -> None:
        """Write the declaration and the value of an element."""
        w, element = self.w, self.elements.elements[position]
        if element.kind == "sum":
            return self._total(position)
        if element.kind == "load":
            value = self.load(element, "t" if element.timed else "0")
        else:
            value = self.value(position, self._names())
        if not self.has_lanes(position):
            return w(f"const {self.declared(position)} v{position} = {value};")
        self._declaration(position)
        self._open_items(True)
        w(f"v{position}[item] = {value};")
        w.close()
        return None

    def _total(self, position: int) -> None:
        """Write a sum over the lanes of a channel."""
        w, element = self.w, self.elements.elements[position]
        value, exists = self._name(int(element.args[0])), self._exists()
        w(f"float v{position} = 0.f;")
        w.pragma("unroll")
        w.open("for (int item = 0; item < ITEMS; ++item)")
        w(f"v{position} += {f'{exists} ? {value} : 0.f' if exists else value};")
        w.close()
        distance = self.width // 2
        while distance:
            w(f"v{position} += __shfl_xor_sync(0xffffffffu, v{position}, {distance});")
            distance //= 2

    def _steps(self) -> None:
        w, steps = self.w, self.loop.steps
        early = sorted(k for k in self.before if self.elements.elements[k].kind == "load")
        for k in self.loads:
            self._declaration(k, "next_", "[AHEAD]")
        for k in early:
            self._declaration(k, "next_")
        self._load_own(early, "0")
        self._load_steps("0")
        w.open(f"for (int batch = 0; batch < {steps}; batch += AHEAD)")
        for k in self.loads:
            self._declaration(k, "now_", "[AHEAD]")
        for k in early:
            w(f"const {self.declared(k)} v{k} = next_{k};")
        self._take()
        if self.loads or early:
            w.open(f"if (batch + AHEAD < {steps})")
            self._load_own(early, "batch + AHEAD")
            self._load_steps("batch + AHEAD")
            w.close()
        for k in sorted(self.before - set(early)):
            w(f"const {self.declared(k)} v{k} = {self.value(k, self._own_names())};")
        for k in self.kept:
            w(f"{self.declared(k)} kept_{k} = 0;")
        w.pragma("unroll" if self.loads or self.ahead <= 8 else "unroll 8")
        w.open("for (int ahead = 0; ahead < AHEAD; ++ahead)")
        w("const int t = batch + ahead;")
        if steps % self.ahead:
            w(f"if (t >= {steps}) break;")
        self._step()
        w.close()
        self._after_steps()
        w.close()

    def _own_names(self) -> dict[int, str]:
        """Return the expressions of values of the step that is the thread's own."""
        return {k: f"kept_{k}" if k in self.kept else f"v{k}" for k in self.needed}

    def _load_own(self, loads: list[int], first: str) -> None:
        """Write the loads of the step that is the thread's own among the next ones."""
        w, steps = self.w, self.loop.steps
        if loads:
            w.open("")
            w(f"const int t = {first} + lane < {steps} ? {first} + lane : {steps - 1};")
            for k in loads:
                w(f"next_{k} = {self.load(self.elements.elements[k], 't')};")
            w.close()

    def _after_steps(self) -> None:
        """Write the values and stores of the one step that each thread computes."""
        w, names = self.w, self._own_names()
        if not self.own:
            return
        for k in sorted(self.after):
            w(f"const {self.declared(k)} v{k} = {self.value(k, names)};")
        w("const int t = batch + lane;")
        for node, target, result in self.own:
            conditions = [f"group < {self.channel_count}", f"t < {self.loop.steps}"]
            conditions += [self.guards(target)]
            line = self.store(node, target, result, names[target.element], "t")
            w(f"if ({' && '.join(c for c in conditions if c)}) {line}")

    def _load_steps(self, first: str) -> None:
        """Write the loads of the next steps; after the last step they repeat it."""
        w, steps = self.w, self.loop.steps
        if not self.loads:
            return
        w.pragma("unroll")
        w.open("for (int ahead = 0; ahead < AHEAD; ++ahead)")
        place = f"{first} + ahead"
        if steps % self.ahead:
            place = f"{place} < {steps} ? {place} : {steps - 1}"
        w(f"const int t = {place};")
        for lanes in (False, True):
            loads = [k for k in self.loads if self.has_lanes(k) == lanes]
            if loads:
                if lanes:
                    self._open_items(True)
                for k in loads:
                    item = "[item]" if lanes else ""
                    value = self.load(self.elements.elements[k], "t")
                    w(f"next_{k}[ahead]{item} = {value};")
                if lanes:
                    w.close()
        w.close()

    def _take(self) -> None:
        w = self.w
        if not self.loads:
            return
        w.pragma("unroll")
        w.open("for (int ahead = 0; ahead < AHEAD; ++ahead)")
        for k in self.loads:
            if self.has_lanes(k):
                w.pragma("unroll")
                w(
                    "for (int item = 0; item < ITEMS; ++item) "
                    f"now_{k}[ahead][item] = next_{k}[ahead][item];"
                )
            else:
                w(f"now_{k}[ahead] = next_{k}[ahead];")
        w.close()

    def _step(self) -> None:
        """Write one step: its values, its results, then the new states."""
        w = self.w
        for k in self._shuffled():
            w(f"const float s{k} = __shfl_sync(0xffffffffu, v{k}, first + ahead);")
        for k in self.needed:
            element = self.elements.elements[k]
            here = element.timed and k not in self.before | self.after
            if here and element.kind != "state" and k not in self.loads:
                self._compute(k)
        for k in self.kept:
            w(f"if (ahead == lane) kept_{k} = {self._name(k)};")
        for node, target, result in self.outputs():
            if (node, target, result) in self.own:
                continue
            if result.dim is not None:
                self._store(node, target, result)
            elif self._state_with(target) is None:
                w.open(f"if (t == {self.loop.steps - 1})")
                self._store(node, target, result)
                w.close()
        for k, target in enumerate(self.elements.states):
            lanes = self._target_lanes(target)
            self._copy(f"new_{k}", target, lanes)
        for k, target in enumerate(self.elements.states):
            item = "[item]" if self._target_lanes(target) else ""
            if item:
                w.pragma("unroll")
                w(f"for (int item = 0; item < ITEMS; ++item) state_{k}[item] = new_{k}[item];")
            else:
                w(f"state_{k} = new_{k};")

    def _shuffled(self) -> list[int]:
        """Return the values computed before the steps that a step reads."""
        found = set()
        for k, users in self._users().items():
            if k in self.before and users - self.before - self.after:
                found.add(k)
        return sorted(found)

    def _copy(self, name: str, target: Target, lanes: bool) -> None:
        w, value = self.w, self._name(target.element)
        if not lanes:
            w(f"const float {name} = {value};")
            return
        w(f"float {name}[ITEMS];")
        w.pragma("unroll")
        w(f"for (int item = 0; item < ITEMS; ++item) {name}[item] = {value};")

    def _state_with(self, target: Target) -> int | None:
        for k, state in enumerate(self.elements.states):
            if state.element == target.element and state.index == target.index:
                return k
        return None

    def _store(self, node: Node, target: Target, result: Result, value: str = "") -> None:
        w, lanes = self.w, self._target_lanes(target)
        line = self.store(node, target, result, value or self._name(target.element), "t")
        guard = self.guards(target)
        if lanes:
            conditions = [f"group < {self.channel_count}", self._exists(), guard]
            condition = " && ".join(c for c in conditions if c)
            self._open_items(True)
            w(f"if ({condition}) {line}")
            w.close()
        else:
            w(f"if ({' && '.join(c for c in ('writes', guard) if c)}) {line}")

    def _last_results(self) -> None:
        """Write the states after the last step."""
        for node, target, result in self.outputs():
            k = self._state_with(target)
            if result.dim is None and k is not None:
                item = "[item]" if self._target_lanes(target) else ""
                self._store(node, target, result, f"state_{k}{item}")
