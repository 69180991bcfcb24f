"""From a captured module and a choice of options to the files of one candidate."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Callable
from dataclasses import dataclass

from cuagent.expert import cpp
from cuagent.expert.capture import Captured
from cuagent.expert.fuse import Group, Step, fuse
from cuagent.expert.graph import Graph, Kind
from cuagent.expert.lower import lower
from cuagent.expert.module import FRESH, KernelCall, ModuleText, render
from cuagent.expert.nest import NestError, nest_of
from cuagent.expert.rewrites import prepared_names, rewrite, share_equal


@dataclass(frozen=True)
class Options:
    """One point of the search: which rewrites, which fusions, which schedule."""

    fold: bool = True
    merge: bool = False
    keep: frozenset[str] = frozenset()
    """Captured operators that stay with torch."""
    tile: int = 64
    """CPU: neighbouring rows that advance together where the reduction is not innermost."""
    threads: int = 0
    """CUDA threads per row; 0 lets the row length decide."""
    vector: bool = True
    """CUDA: 16-byte accesses where the shape allows them."""


@dataclass(frozen=True)
class Candidate:
    """Files by relative path, and what they do in words."""

    options: Options
    files: dict[str, str]
    kernels: tuple[str, ...]
    """Names of the kernels."""
    origins: tuple[frozenset[str], ...]
    """For each kernel, the captured operators that it replaces."""
    notes: tuple[str, ...]
    folded: tuple[str, ...]
    """Operators that rewrites removed."""


@dataclass(frozen=True)
class Subject:
    """A captured task: all that candidates are made from."""

    captured: Captured
    reference: str
    """Text of the reference class and what it needs."""
    entry: str
    attribute: Callable[[str], str]
    device: str


def make_candidate(subject: Subject, options: Options) -> Candidate | None:
    """The candidate under these options, or None where they leave nothing to do."""
    keep = set(options.keep)
    while True:
        before = share_equal(lower(subject.captured, frozenset(keep)))
        graph = rewrite(before, fold=options.fold, merge=options.merge)
        prepared = prepared_names(graph)
        steps = fuse(graph, outside=prepared)
        calls: dict[int, KernelCall] = {}
        rejected: set[str] = set()
        for position, step in enumerate(steps):
            if not isinstance(step, Group):
                continue
            origins = _origins(step)
            try:
                if not _worth(step, steps, graph, subject.device):
                    raise NestError("not worth a kernel")
                name = _kernel_name(step, [c.name for c in calls.values()])
                calls[position] = _kernel(subject.device, name, step, graph, options)
            except NestError:
                rejected |= origins
        if not rejected - keep:
            break
        keep |= rejected
    rewritten = _changed(before, graph)
    if not calls and not rewritten:
        return None
    return _assemble(subject, options, graph, prepared, steps, calls, rewritten)


def _origins(group: Group) -> frozenset[str]:
    return frozenset(n.origin for n in group.nodes if n.origin)


def _worth(group: Group, steps: tuple[Step, ...], graph: Graph, device: str) -> bool:
    """False for one simple operation that torch has a kernel for already.

    On the CPU even one is worth it where it can work in place on a library call's result: memory
    that was just written is in the cache and needs no new pages.
    """
    work = [n for n in group.nodes if n.kind is not Kind.VIEW]
    origins = {n.origin for n in work}
    shared = any(
        origins & _origins(step) for step in steps if isinstance(step, Group) and step is not group
    )
    # A product that became a scaling is no product any more.
    algebra = any(origin.startswith(("matmul", "mm")) for origin in origins)
    users = graph.users()
    in_place = device == "cpu" and any(
        graph.node(a).op.startswith(FRESH)
        and len(users[a]) == 1
        and a not in graph.outputs
        and graph.node(a).size == group.size == n.size
        for n in work
        for a in n.inputs
    )
    return len(origins) > 1 or len(work) > 3 or shared or algebra or in_place


def _kernel_name(group: Group, taken: list[str]) -> str:
    """From the captured operators: `linear_gelu`; at most four of them."""
    words = list(dict.fromkeys(re.sub(r"_\d+$", "", n.origin) for n in group.nodes))
    base = "_".join(words[:2] + words[-2:] if len(words) > 4 else words) + "_kernel"
    name, k = base, 2
    while name in taken:
        name, k = f"{base}{k}", k + 1
    return name


def _kernel(device: str, name: str, group: Group, graph: Graph, options: Options) -> KernelCall:
    nest = nest_of(group, graph)
    title = _title(group)
    if device == "cuda":
        from cuagent.expert import cuda

        text, workspace = cuda.render(name, nest, title, options.threads, options.vector)
        return KernelCall(name, f"kernels/{name}.cu", text, nest, workspace)
    text = cpp.render(name, nest, title, tile=options.tile)
    return KernelCall(name, f"kernels/{name}.cpp", text, nest)


def _title(group: Group) -> str:
    words = list(dict.fromkeys(n.origin for n in group.nodes if n.origin))
    return f"{' -> '.join(words)} in one kernel."


def _changed(before: Graph, after: Graph) -> tuple[str, ...]:
    """Names of nodes that a rewrite took away, parameters' own arithmetic left out."""
    names = {n.name for n in after.nodes}
    old = prepared_names(before)
    changed = [n for n in before.nodes if n.name not in names and n.name not in old]
    changed += [
        n
        for n in before.nodes
        if n.kind is Kind.POINTWISE and n.name in names and after.node(n.name).kind is Kind.LIBRARY
    ]
    return tuple(dict.fromkeys(n.origin for n in changed if n.origin))


def _assemble(
    subject: Subject,
    options: Options,
    graph: Graph,
    prepared: frozenset[str],
    steps: tuple[Step, ...],
    calls: dict[int, KernelCall],
    rewritten: tuple[str, ...],
) -> Candidate:
    origins = tuple(_origins(step) for k, step in enumerate(steps) if isinstance(step, Group))
    notes = [f"{call.name}: {_title(call.nest.group)[:-1]}" for call in calls.values()]
    if rewritten:
        notes.insert(0, f"rewritten without a pass of their own: {', '.join(rewritten)}")
    parts = ModuleText(
        graph,
        prepared,
        subject.reference,
        subject.entry,
        subject.captured.arguments,
        subject.attribute,
        notes,
    )
    files = {"model_new.py": render(parts, steps, calls)}
    for call in calls.values():
        files[call.path] = call.text
    if calls:
        header = "pointwise_cuda.h" if subject.device == "cuda" else "pointwise.h"
        files[f"kernels/{header}"] = (
            importlib.resources.files("cuagent.expert").joinpath(header).read_text("utf-8")
        )
    names = tuple(call.name for call in calls.values())
    return Candidate(options, files, names, origins, tuple(notes), rewritten)
