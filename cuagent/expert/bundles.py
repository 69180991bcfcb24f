"""Launch small kernels that do not depend on each other as one kernel (CUDA only).

A small kernel takes 2 to 4 us on a GPU, most of it to begin and to end, and 12 us of the host. The
branches of an Inception module have such kernels: biases, slices and a pool. Each kernel of a
bundle becomes a function, and the index of a block tells which one it computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import pairwise

from cuagent.expert.graph.graph import ITEM_BYTES, Graph, Kind, Node
from cuagent.expert.kernel import KernelCall
from cuagent.expert.method import Call, Computed, Steps
from cuagent.expert.naming import numbered
from cuagent.expert.sharing import shared, text_without_names
from cuagent.expert.streaming.expressions import identifier
from cuagent.expert.streaming.group import Group

BUNDLED = "bundles"
"""Kernel family of a bundle."""
MOST_BYTES = 24 << 20
"""Largest number of bytes that a kernel of a bundle reads and writes: 8 us of an H200."""
MOST_MEMBERS = 8
NEAR = 12
"""Largest distance of kernels of a bundle, in steps. Values should not wait long in the L2
cache."""
FAMILIES = ("streaming", "pooling")
KERNEL = re.compile(
    r"static __global__ void __launch_bounds__\((?P<threads>\d+)\) (?P<name>\w+)_device"
    r"\((?P<parameters>[^()]*)\) \{\n(?P<body>.*?)^\}\n\n"
    r'extern "C" void (?P=name)\((?P=parameters), cudaStream_t stream\) \{\n'
    r"  (?P=name)_device<<<(?P<blocks>\d+), (?P=threads), 0, stream>>>\([^()]*\);\n\}",
    re.MULTILINE | re.DOTALL,
)
"""Matches a kernel without helper functions and its launcher."""
TOGETHER = re.compile(r"__shared__|__sync|__shfl|reduce_|join_|scan_|gridDim|blockIdx\.[yz]")
"""Matches texts of kernels whose threads exchange values, or whose grid has more dimensions."""
RANDOM = re.compile(r"rand|dropout|bernoulli|normal|multinomial|uniform|poisson|exponential")
"""Matches texts of calls that may draw random numbers."""


def with_bundles(
    steps: Steps, calls: dict[int, Call], graph: Graph, taken: Iterable[str] = ()
) -> tuple[Steps, dict[int, Call]]:
    """Return the steps and their calls, with one call in place of the kernels of each bundle.

    The other steps keep their order, except those that a bundle delays.
    """
    units = _Units(steps, calls, graph)
    units.join()
    names = {*taken, *(call.name for call in calls.values())}
    known: dict[str, KernelCall] = {}
    result: list[Computed | Node] = []
    made: dict[int, Call] = {}
    for members in units.order():
        if len(members) == 1:
            call = calls.get(members[0])
            step = steps[members[0]]
        else:
            found = [(calls[k], units.kernels[k]) for k in members]
            first = re.sub(r"_kernel[0-9]*$", "", found[0][0].name)
            name = numbered(f"{first}_bundle_kernel", names)
            call = _bundle(name, found)  # type: ignore[arg-type]
            call, step = shared(call, known), call.group
            names.add(call.name)
        if call is not None:
            made[len(result)] = call
        result.append(step)
    return tuple(result), made


@dataclass
class _Units:
    """Steps, of which some are joined to one unit. A unit is known by its first step."""

    steps: Steps
    calls: dict[int, Call]
    graph: Graph
    unit: list[int] = field(default_factory=list)
    """Unit of each step."""
    members: dict[int, list[int]] = field(default_factory=dict)
    before: dict[int, set[int]] = field(default_factory=dict)
    """Steps whose values each step reads."""
    after: dict[int, set[int]] = field(default_factory=dict)
    kernels: dict[int, re.Match[str]] = field(default_factory=dict)
    """Match of the text of each step's kernel, without names of tensors (`KERNEL`)."""

    def __post_init__(self) -> None:
        count = len(self.steps)
        self.unit = list(range(count))
        self.members = {k: [k] for k in range(count)}
        owner = {name: k for k, step in enumerate(self.steps) for name in _values(step)}
        self.before = {k: _read(k, step, owner, self.graph) for k, step in enumerate(self.steps)}
        # Calls of torch that draw random numbers keep their order.
        drawn = [k for k, step in enumerate(self.steps) if _draws(step)]
        for first, later in pairwise(drawn):
            self.before[later].add(first)
        self.after = {k: set() for k in range(count)}
        for k, read in self.before.items():
            for other in read:
                self.after[other].add(k)

    def join(self) -> None:
        """Join near kernels of which none depends on another one."""
        real = [k for k, step in enumerate(self.steps) if _is_work(step, k in self.calls)]
        texts: dict[str, str] = {}
        for k in real:
            call = self.calls.get(k)
            if isinstance(call, KernelCall) and _is_small(call, self.graph):
                # The first of the calls that share a kernel has the names in its text.
                text = texts.setdefault(call.name, text_without_names(call))
                if match := _kernel(text):
                    self.kernels[k] = match
        for place, first in enumerate(real):
            if first not in self.kernels or self.unit[first] != first:
                continue
            for other in real[place + 1 : place + 1 + NEAR]:
                if other not in self.kernels or self.unit[other] != other:
                    continue
                if len(self.members[first]) == MOST_MEMBERS:
                    break
                same = self.kernels[first]["threads"] == self.kernels[other]["threads"]
                if same and not (self._reaches(first, other) or self._reaches(other, first)):
                    self.members[first].append(other)
                    self.unit[other] = first
                    del self.members[other]

    def _reaches(self, first: int, last: int) -> bool:
        """Return True if the unit `last` depends on the unit `first`."""
        end = max(*self.members[first], *self.members[last])
        stack, seen = [first], {first}
        while stack:
            for member in self.members[stack.pop()]:
                for reader in self.after[member]:
                    unit = self.unit[reader]
                    if unit == last:
                        return True
                    if unit not in seen and unit <= end:
                        seen.add(unit)
                        stack.append(unit)
        return False

    def order(self) -> list[list[int]]:
        """Return the members of each unit, units behind those on which they depend, and otherwise
        in the order of their first steps."""
        waiting = {
            unit: {self.unit[b] for m in members for b in self.before[m]} - {unit}
            for unit, members in self.members.items()
        }
        ready = [unit for unit, others in waiting.items() if not others]
        heapify(ready)
        found = []
        while ready:
            unit = heappop(ready)
            found.append(self.members[unit])
            for reader in {self.unit[a] for m in self.members[unit] for a in self.after[m]}:
                if reader != unit and unit in waiting[reader]:
                    waiting[reader].discard(unit)
                    if not waiting[reader]:
                        heappush(ready, reader)
        assert len(found) == len(self.members)
        return found


def _values(step: Computed | Node) -> Iterable[str]:
    return (step.name,) if isinstance(step, Node) else step.places


def _read(place: int, step: Computed | Node, owner: dict[str, int], graph: Graph) -> set[int]:
    """Return the positions of the steps whose values a step reads, also through views."""
    names = [a for n in ((step,) if isinstance(step, Node) else step.nodes) for a in n.inputs]
    if not isinstance(step, Node | Group):
        names += step.tensors
    found, seen = set[int](), set[str]()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in owner:
            found.add(owner[name])
        else:
            names += graph.node(name).inputs
    return found - {place}


def _draws(step: Computed | Node) -> bool:
    return isinstance(step, Node) and bool(RANDOM.search(step.op))


def _is_work(step: Computed | Node, has_call: bool) -> bool:
    """Return True for a step that takes time in a call of the module."""
    return has_call or (isinstance(step, Node) and step.kind is Kind.LIBRARY and not step.constant)


def _is_small(call: KernelCall, graph: Graph) -> bool:
    if not call.path.endswith(".cu") or call.workspace or call.offsets:
        return False
    names = (*call.tensors_read, *call.group.outputs)
    moved = sum(graph.node(name).size * ITEM_BYTES[graph.node(name).dtype] for name in names)
    return call.group.family in FAMILIES and moved <= MOST_BYTES


def _kernel(text: str) -> re.Match[str] | None:
    """Return the match of a kernel's text; None for kernels that belong to no bundle."""
    found = list(KERNEL.finditer(text))
    if len(found) != 1 or TOGETHER.search(found[0]["body"]):
        return None
    rest = KERNEL.sub("", text).splitlines()
    return found[0] if all(not line or line.startswith("#include") for line in rest) else None


def _bundle(name: str, members: Sequence[tuple[KernelCall, re.Match[str]]]) -> KernelCall:
    """Return one call for several kernels."""
    calls = [call for call, _ in members]
    groups = [call.group for call in calls]
    group = Group(
        tuple(node for group in groups for node in group.nodes),
        {name: place for group in groups for name, place in group.places.items()},
        max(group.size for group in groups),
        (),
        tuple(name for group in groups for name in group.outputs),
        BUNDLED,
    )
    reads = {name: dtype for call in calls for name, dtype in call.tensors_read.items()}
    in_place = frozenset(
        (to, given)
        for call in calls
        for to, given in call.in_place
        if sum(given in other.tensors_read for other in calls) == 1
    )
    headers = dict.fromkeys(header for call in calls for header in call.headers)
    return KernelCall(
        name, f"kernels/{name}.cu", _text(name, members), group, reads, tuple(headers), in_place
    )


def _text(name: str, members: Sequence[tuple[KernelCall, re.Match[str]]]) -> str:
    """Return the CUDA source: a function for each different kernel, and the kernel that calls
    them."""
    includes = dict.fromkeys(
        line for _, found in members for line in found.string.splitlines() if "#include" in line
    )
    text, branches = [*includes], list[str]()
    outputs, inputs = dict[str, str](), dict[str, str]()
    functions: dict[str, str] = {}
    start, threads = 0, members[0][1]["threads"]
    for k, (call, found) in enumerate(members):
        types = [parameter.rpartition(" ")[0] for parameter in found["parameters"].split(", ")]
        written = [f"{identifier(n)}_out" for n in call.group.outputs]
        read = [identifier(n) for n in call.tensors_read]
        outputs |= dict(zip(written, types, strict=False))
        inputs |= dict(zip(read, types[len(written) :], strict=True))
        body = found["body"].replace("blockIdx.x", "part_block")
        body = f"({found['parameters']}, const int part_block) {{\n{body}}}"
        if body not in functions:
            functions[body] = f"{name}_device{len(functions)}"
            text += ["", *(line for line in call.text.splitlines() if line.startswith("//"))]
            text.append(f"static __device__ __forceinline__ void {functions[body]}{body}")
        end = start + int(found["blocks"])
        test = f"if (blockIdx.x < {end}) " if k + 1 < len(members) else ""
        words = ", ".join([*written, *read, f"blockIdx.x - {start}" if start else "blockIdx.x"])
        branches.append(f"  {'else ' if k else ''}{test}{functions[body]}({words});")
        start = end
    words = ", ".join([*outputs, *inputs])
    parameters = ", ".join(f"{kind} {word}" for word, kind in (outputs | inputs).items())
    bounds = f"__launch_bounds__({threads})"
    text += ["", f"static __global__ void {bounds} {name}_device({parameters}) {{", *branches]
    text += ["}", "", f'extern "C" void {name}({parameters}, cudaStream_t stream) {{']
    text += [f"  {name}_device<<<{start}, {threads}, 0, stream>>>({words});", "}"]
    return "\n".join(text) + "\n"
