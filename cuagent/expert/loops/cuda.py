"""Generate CUDA kernels of loops over time.

Lanes are the elements of a channel over which the body sums (`elements`). A thread, or a group of
adjacent threads that divide a channel's lanes, computes all steps of one channel, with the states
in registers. Adjacent groups have adjacent channels. The tensors of the next steps are loaded
before the current steps are computed. Sums over lanes are warp shuffles. Values without lanes,
before and after the states (softplus of delta, a gate), are divided among the threads of a group:
each computes them for one of the next steps. Not covered: few channels and many steps, for which a
scan in chunks has more parallel work.
"""

from __future__ import annotations

import math

from cuagent.expert.graph.graph import Node
from cuagent.expert.kernel import KernelCall, Request, cuda_call
from cuagent.expert.loops.cuda_layout import THREADS, ThreadLayout
from cuagent.expert.loops.elements import Target
from cuagent.expert.loops.spec import Result


def generate(request: Request) -> KernelCall:
    """Return the kernel of a loop. Raises NestError for a state with too many elements."""
    kernel = _Kernel(request)
    return cuda_call(request, kernel.text(), kernel.tensors_read, kernel.includes)


class _Kernel(ThreadLayout):
    """Generates the text of one loop's CUDA kernel."""

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
        """Declare the thread's channel indices, and its states with their first values.

        Threads without a channel repeat the last channel, because a shuffle needs all threads of a
        warp.
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

    def _open_items(self, lanes: bool) -> None:
        """Open a C++ block; with `lanes`, a loop over the lanes of the thread."""
        w = self.w
        if not lanes:
            w.open("")
            return
        w.pragma("unroll")
        w.open("for (int item = 0; item < ITEMS; ++item)")
        self._lane()

    def _lane(self) -> None:
        """Declare the indices of the current lane; a lane past the last one uses the last one's
        indices.
        """
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
        """Return the C++ condition that the current lane exists; "" if all threads have equally
        many lanes.
        """
        if not self._is_uneven():
            return ""
        return f"lane + item * WIDTH < {self.lane_count}"

    def _name(self, position: int) -> str:
        """Return the C++ expression of the element at `position`, for the current lane."""
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
        """Write the computation of the values that are the same in all steps."""
        for k in self.needed:
            element = self.elements.elements[k]
            if not element.timed:
                self._compute(k)

    def _compute(self, position: int) -> None:
        """Declare a variable with the value of the element at `position`."""
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
        """Write the sum of an element over all lanes of a channel."""
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
        """Return the C++ variable of each element, in the code that a thread runs for one step of a
        batch.
        """
        return {k: f"kept_{k}" if k in self.kept else f"v{k}" for k in self.needed}

    def _load_own(self, loads: list[int], first: str) -> None:
        """Write the loads of elements `loads` for the next batch; each thread loads those of one
        step.
        """
        w, steps = self.w, self.loop.steps
        if loads:
            w.open("")
            w(f"const int t = {first} + lane < {steps} ? {first} + lane : {steps - 1};")
            for k in loads:
                w(f"next_{k} = {self.load(self.elements.elements[k], 't')};")
            w.close()

    def _after_steps(self) -> None:
        """Write the operations and stores after a batch; each thread executes those of one step."""
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
        """Write the loads for the next batch of steps, from step `first`; past the end the last
        step repeats.
        """
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
        """Write one step: its values, the stores of its results, then the update of the states."""
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
        """Return the elements in `before` that a step reads from the thread that computed them."""
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
        """Write the stores of the states after the last step."""
        for node, target, result in self.outputs():
            k = self._state_with(target)
            if result.dim is None and k is not None:
                item = "[item]" if self._target_lanes(target) else ""
                self._store(node, target, result, f"state_{k}{item}")
