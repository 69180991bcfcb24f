"""Launch small consecutive kernels by one call from Python (CPU only).

A call from Python takes some 5 us, as long as a small kernel. The kernels of a chain become
functions of one file; tensors that only they read are in one block of scratch memory. Kernels whose
texts differ only in names and in where they begin to read (the steps of a loop that torch.export
unrolled) share one function, so that they are compiled once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cuagent.expert.graph.graph import ITEM_BYTES, Graph, Kind, Node
from cuagent.expert.kernel import KernelCall
from cuagent.expert.method import Call, Steps
from cuagent.expert.naming import numbered
from cuagent.expert.sharing import shared, text_without_names
from cuagent.expert.streaming.expressions import TYPES, identifier
from cuagent.expert.streaming.group import Group
from cuagent.expert.streaming.text import Writer

MOST_BYTES = 1 << 19
"""Largest number of bytes that a kernel of a chain reads and writes.

For more bytes the time of a call does not matter.
"""
MOST_SCRATCH = 1 << 20
"""Largest size in bytes of a chain's scratch memory."""
FAMILIES = ("streaming", "scans", "scatters", "pooling")
"""Kernel families that may be chained; kernels of other families take much longer than a call."""
CHAINED = "chains"
"""Kernel family of a chain."""
ALIGNMENT = 64
EXPORTED = 'extern "C" void '


@dataclass(frozen=True)
class _Member:
    """A kernel of a chain: its group, and its call."""

    step: Group
    call: KernelCall


def with_chains(
    steps: Steps,
    calls: dict[int, Call],
    graph: Graph,
    rebased: Callable[[Group], KernelCall],
    taken: Iterable[str] = (),
) -> tuple[Steps, dict[int, Call]]:
    """Return the steps and their calls, with one call in place of the kernels of each chain.

    Library calls that do not read the results of small kernels before them are moved before them,
    so that more kernels follow one another. `rebased` makes a kernel's call that accepts pointers
    into tensors.
    """
    found: list[tuple[Group | Node, Call | None]] = []
    known: dict[str, KernelCall] = {}
    names = {*taken, *(call.name for call in calls.values())}
    for run in _runs(steps, calls, graph):
        base = f"{calls[run[0]].name.removesuffix('_kernel')}_chain_kernel" if len(run) > 1 else ""
        name = numbered(base, names) if base else ""
        chain = _chain(name, run, steps, calls, graph, rebased) if name else None
        if chain is not None:
            chain = shared(chain, known)
            names.add(chain.name)
            found.append((chain.group, chain))
        else:
            found += [(steps[k], calls.get(k)) for k in run]  # type: ignore[misc]
    joined = {k: call for k, (_, call) in enumerate(found) if call is not None}
    return tuple(step for step, _ in found), joined


def _runs(steps: Steps, calls: dict[int, Call], graph: Graph) -> Iterator[list[int]]:
    """Yield the positions of the steps in their new order; small kernels of one chain are one
    list.
    """
    owner = {
        name: k
        for k, step in enumerate(steps)
        for name in (step.places if isinstance(step, Group) else ())
    }
    pending: list[int] = []
    for k, step in enumerate(steps):
        call = calls.get(k)
        if isinstance(call, KernelCall) and _is_small(call, graph):
            pending.append(k)
            continue
        names = _reads(step, call)
        if pending and not _producers(names, owner, graph).isdisjoint(pending):
            yield pending
            pending = []
        yield [k]
    if pending:
        yield pending


def _reads(step: object, call: Call | None) -> list[str]:
    """Return the names of the tensors that a step reads; empty for views, which compute nothing."""
    if isinstance(step, Node) and step.kind is Kind.LIBRARY:
        return list(step.inputs)
    return list(call.tensors_read) if call else []


def _is_small(call: KernelCall, graph: Graph) -> bool:
    names = (*call.tensors_read, *call.group.outputs)
    size = sum(_bytes(graph.node(name)) for name in names)
    single = call.text.count(EXPORTED) == 1
    small = size <= MOST_BYTES and not call.workspace and call.path.endswith(".cpp")
    return small and single and call.group.family in FAMILIES


def _bytes(node: Node) -> int:
    return node.size * ITEM_BYTES[node.dtype]


def _producers(names: Sequence[str], owner: dict[str, int], graph: Graph) -> set[int]:
    """Return the positions of the kernels that compute `names`, or the values that these are views
    of.
    """
    found, stack, seen = set(), list(names), set[str]()
    while stack:
        name = stack.pop()
        if name in owner:
            found.add(owner[name])
        elif name not in seen:
            seen.add(name)
            node = graph.node(name)
            if node.kind is not Kind.LIBRARY:
                stack += node.inputs
    return found


def _chain(
    name: str,
    run: Sequence[int],
    steps: Steps,
    calls: dict[int, Call],
    graph: Graph,
    rebased: Callable[[Group], KernelCall],
) -> KernelCall | None:
    """Return one call for the kernels at the positions `run`; None if they cannot form a chain."""
    members = []
    for k in run:
        step, call = steps[k], calls[k]
        assert isinstance(step, Group)
        assert isinstance(call, KernelCall)
        call = rebased(step) if step.family == "streaming" else call
        members.append(_Member(step, call))
    made = {name for member in members for name in member.step.outputs}
    inside = {name for member in members for name in member.step.places}
    if any(t in inside and t not in made for m in members for t in m.call.tensors_read):
        return None
    outputs = [n for n in _ordered(members) if n in _read_outside(run, steps, calls, graph, made)]
    places, size = _placed(members, set(outputs), graph)
    if size > MOST_SCRATCH:
        return None
    reads = {
        name: dtype
        for member in members
        for name, dtype in member.call.tensors_read.items()
        if name not in made
    }
    group = Group(
        tuple(node for member in members for node in member.step.nodes),
        {name: place for member in members for name, place in member.step.places.items()},
        max(member.step.size for member in members),
        (),
        tuple(outputs),
        CHAINED,
    )
    text = _text(name, members, outputs, reads, places, graph)
    headers = dict.fromkeys(h for member in members for h in member.call.headers)
    return KernelCall(
        name, f"kernels/{name}.cpp", text, group, reads, tuple(headers), workspace=-(-size // 4)
    )


def _ordered(members: Sequence[_Member]) -> list[str]:
    return [name for member in members for name in member.step.outputs]


def _read_outside(
    run: Sequence[int], steps: Steps, calls: dict[int, Call], graph: Graph, made: set[str]
) -> set[str]:
    """Return the names in `made` that are read outside the chain, also through views."""
    names = list(graph.outputs)
    for k, step in enumerate(steps):
        if k in run:
            continue
        names += _reads(step, calls.get(k))
    found, stack, seen = set(), names, set[str]()
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in made:
            found.add(name)
        node = graph.node(name)
        if node.kind in (Kind.VIEW, Kind.STRIDED):
            stack += node.inputs
    return found


def _placed(
    members: Sequence[_Member], outputs: set[str], graph: Graph
) -> tuple[dict[str, int], int]:
    """Return the offset in bytes of each tensor in a chain's scratch memory, and the memory's size.

    A tensor is put into the first gap between the tensors that a later kernel still reads.
    """
    last = {t: k for k, member in enumerate(members) for t in member.call.tensors_read}
    places: dict[str, int] = {}
    live: dict[str, tuple[int, int]] = {}
    size = 0
    for k, member in enumerate(members):
        for name in member.step.outputs:
            if name in outputs:
                continue
            need = -(-_bytes(graph.node(name)) // ALIGNMENT) * ALIGNMENT
            start = 0
            for first, end in sorted(live.values()):
                if start + need <= first:
                    break
                start = max(start, end)
            live[name] = (start, start + need)
            places[name] = start
            size = max(size, start + need)
        live = {name: span for name, span in live.items() if last.get(name, -1) > k}
    return places, size


def _text(
    name: str,
    members: Sequence[_Member],
    outputs: Sequence[str],
    reads: dict[str, str],
    places: dict[str, int],
    graph: Graph,
) -> str:
    """Return the C++ source: one function for each different kernel, and one that calls them in
    order.
    """
    w = Writer()
    includes = [
        line for m in members for line in m.call.text.splitlines() if line.startswith("#include")
    ]
    for line in dict.fromkeys(includes):
        w(line)
    functions: dict[str, str] = {}
    lines = []
    for member in members:
        call = member.call
        key = text_without_names(call)
        if key not in functions:
            functions[key] = f"part_{len(functions)}::{call.name}"
            w()
            _write_function(w, f"part_{len(functions) - 1}", call)
        arguments = [*member.step.outputs, *call.tensors_read]
        words = [_pointer(a, call.offsets.get(a, 0), outputs, reads) for a in arguments]
        lines.append(f"{functions[key]}({', '.join(words)});")
    w()
    parameters = [f"{TYPES[graph.node(n).dtype]}* {identifier(n)}_out" for n in outputs]
    parameters += [f"const {TYPES[dtype]}* {identifier(n)}" for n, dtype in reads.items()]
    parameters += ["float* scratch"] if places else []
    w.open(f"{EXPORTED}{name}({', '.join(parameters)})")
    if places:
        w("char* const memory = reinterpret_cast<char*>(scratch);")
    for tensor, place in places.items():
        kind = TYPES[graph.node(tensor).dtype]
        w(f"{kind}* const {identifier(tensor)}_kept = reinterpret_cast<{kind}*>(memory + {place});")
    for line in lines:
        w(line)
    w.close()
    return "\n".join(w.lines) + "\n"


def _write_function(w: Writer, space: str, call: KernelCall) -> None:
    body = [line for line in call.text.splitlines() if not line.startswith("#include")]
    w(f"namespace {space} {{")
    for line in body:
        w(re.sub(f"^{EXPORTED}", "static void ", line))
    w(f"}}  // namespace {space}")


def _pointer(name: str, offset: int, outputs: Sequence[str], reads: dict[str, str]) -> str:
    word = identifier(name)
    text = f"{word}_out" if name in outputs else word if name in reads else f"{word}_kept"
    return f"{text} + {offset}" if offset else text
