"""Generate the files of one candidate from a captured module and a choice of options."""

from __future__ import annotations

import importlib.resources
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cuagent.expert.bundles import BUNDLED
from cuagent.expert.capture.subject import Subject
from cuagent.expert.chains import CHAINED
from cuagent.expert.graph.graph import ITEM_BYTES, Graph, Kind, Node
from cuagent.expert.kernel import KernelCall
from cuagent.expert.method import Method, ModuleText
from cuagent.expert.mlps.chain import may_chain
from cuagent.expert.module import render
from cuagent.expert.naming import origins_of, title
from cuagent.expert.notes import kernel_notes, listed
from cuagent.expert.options import BACKWARD, Options
from cuagent.expert.packing import files_of, joined_text
from cuagent.expert.plan import MethodPlan, plan_method
from cuagent.expert.products.product import Product
from cuagent.expert.products.qualify import is_doubtful, is_small, may_launch_less, qualifies
from cuagent.expert.recurrences.cells import LayerCall
from cuagent.expert.vectors import with_wide_vectors

__all__ = ["Candidate", "Options", "make_candidate"]

LIBRARY_CONVOLUTIONS = ("F.conv", "torch.permute(F.conv")
CONVOLUTIONS = (*LIBRARY_CONVOLUTIONS, "own F.conv")
"""Prefixes of the calls of convolutions, except depthwise ones."""


@dataclass(frozen=True)
class Candidate:
    """A generated attempt: files by relative path, and a description of its kernels."""

    options: Options
    files: dict[str, str]
    kernels: tuple[str, ...]
    """Names of the generated kernels."""
    origins: tuple[frozenset[str], ...]
    """Names of the captured operators that each kernel replaces, in the order of `kernels`."""
    notes: tuple[str, ...]
    """Lines on the rewrites, then on the kernels (`notes.py`)."""
    folded: tuple[str, ...]
    """Names of the captured operators that rewrites merged into other operators."""
    library: tuple[str, ...] = ()
    """Names of the captured operators that one fused call of an attention, recurrence or loop
    replaces.
    """
    constants: tuple[str, ...] = ()
    """Names of the captured operators that are computed once, because no input changes their
    values.
    """
    has_products: bool = False
    """True if a kernel computes a matrix product or a convolution."""
    small_products: bool = False
    """True if `Options.small_products` may have a kernel for a product, or for several."""
    saved_launches: int = 0
    """Number of further small products that `Options.small_products` computes together with the
    operations behind them, which saves a launch each."""
    half_products: frozenset[str] = frozenset()
    """Names of the captured products of half precision that are to be the library's for a candidate
    without doubtful kernels of products (`products.qualify.is_doubtful`)."""
    convolutions: int = 0
    """Number of convolutions, except depthwise ones."""
    library_convolutions: int = 0
    """Number of convolutions, except depthwise ones, that torch computes."""
    half_convolutions: int = 0
    """Number of those in half precision."""
    library_attention: bool = False
    """True if torch computes an attention in float32 that a generated kernel could compute."""
    library_layers: bool = False
    """True if torch computes a recurrent layer."""
    launches: int = 0
    """Number of kernel launches and torch calls in one call of the module. A recurrent layer counts
    as one for each step."""
    copied_bytes: int = 0
    """Bytes of the arguments and results, which a CUDA graph of the candidate copies."""
    has_recurrences: bool = False
    """True if a CUDA kernel of the candidate computes all steps of a recurrent layer."""
    has_chains: bool = False
    """True if some call launches several kernels (`chains`)."""


def make_candidate(subject: Subject, options: Options) -> Candidate | None:
    """Return the candidate with these options; None if it would compute the same as the
    reference.
    """
    # The module that a plan becomes replays a CUDA graph or not; the plan is the same.
    key = replace(options, graph=False)
    if key not in subject.plans:
        subject.plans[key] = _plans(subject, key)
    plans: list[MethodPlan] = subject.plans[key]
    return _assemble(subject, options, plans) if plans[-1].gains else None


def _plans(subject: Subject, options: Options) -> list[MethodPlan]:
    """Return the plan of the forward, and of the backward if the task has one."""
    if options.exact_convolutions:
        subject = replace(subject, target=replace(subject.target, tf32_convolutions=False))
    elif options.tf32_few_channels:
        subject = replace(subject, target=replace(subject.target, exact_channels=0))
    # Kernels share a namespace with the reference's helpers and arguments.
    taken = {*re.findall(r"\w+", subject.reference), *subject.captured.arguments}
    forward = plan_method(subject, options, taken)
    if subject.backward is None:
        return [forward]
    taken |= {*subject.backward.arguments, *(call.name for call in forward.calls.values())}
    # Names in `keep` without the prefix are operators of the forward.
    other = replace(subject, captured=subject.backward, backward=None)
    options = replace(options, compile="", keep=_of_backward(options.keep))
    return [forward, plan_method(other, options, taken)]


def _of_backward(keep: frozenset[str]) -> frozenset[str]:
    """Return the names in `keep` (`Options.keep`) that belong to the backward, without their
    prefix.
    """
    return frozenset(n.removeprefix(BACKWARD) for n in keep if n.startswith(BACKWARD))


def _assemble(subject: Subject, options: Options, plans: Sequence[MethodPlan]) -> Candidate:
    """Return the candidate for the plans of a forward, or of a forward and a backward."""
    plans = _with_few_files(plans)
    found = [_method(plan, options, is_second=k > 0) for k, plan in enumerate(plans)]
    files = {"model_new.py": render(*(method for method, _ in found))}
    all_calls = [call for plan in plans for call in plan.calls.values()]
    kernels = [call for call in all_calls if isinstance(call, KernelCall)]
    texts: dict[str, dict[str, str]] = {}
    for kernel in kernels:
        texts.setdefault(kernel.path, {})[kernel.name] = kernel.text
    for path, own in texts.items():
        files[path] = with_wide_vectors(path, joined_text([*own.values()]))
    for header in dict.fromkeys(header for kernel in kernels for header in kernel.headers):
        text = importlib.resources.files("cuagent.expert.streaming") / header
        files[f"kernels/{header}"] = text.read_text("utf-8")
    origins = {name: names for _, own in found for name, names in own.items()}
    library_calls = [
        step
        for plan in plans
        for step in plan.steps
        if isinstance(step, Node) and step.kind is Kind.LIBRARY
    ]
    return Candidate(
        options,
        files,
        kernels=tuple(origins),
        origins=tuple(origins.values()),
        notes=tuple(note for method, _ in found for note in method.parts.notes),
        folded=tuple(name for plan in plans for name in plan.rewritten),
        library=tuple(n for plan in plans for group in plan.library.values() for n in group),
        constants=tuple(name for plan in plans for name in plan.computed_once),
        has_products=len(kernels) < len(all_calls),
        small_products=any(
            qualifies(step, plan.subject.target) and is_small(step, plan.graph)
            for plan in plans
            for step in plan.steps
            if isinstance(step, Node)
        )
        or (
            not options.small_products
            and any(may_chain(plan.graph, plan.subject.target) for plan in plans)
        ),
        saved_launches=0 if options.small_products else sum(map(_saved_launches, plans)),
        half_products=_half_products(plans[0]),
        convolutions=len(
            {n.origin for plan in plans for n in plan.graph.nodes if n.op.startswith(CONVOLUTIONS)}
        ),
        library_convolutions=sum(n.op.startswith(LIBRARY_CONVOLUTIONS) for n in library_calls),
        half_convolutions=sum(
            n.op.startswith(LIBRARY_CONVOLUTIONS) and n.dtype != "float32" for n in library_calls
        ),
        library_attention=any(
            n.op.startswith("F.scaled_dot_product_attention(")
            and n.dtype == "float32"
            and len(n.args) == 3
            for n in library_calls
        ),
        launches=len(all_calls) + sum(map(_launches, library_calls)),
        library_layers=any(isinstance(n.spec, LayerCall) for n in library_calls),
        copied_bytes=_bytes_at_the_border(plans[0].graph),
        has_recurrences=any(
            k.group.family == "recurrences" and k.path.endswith(".cu") for k in kernels
        ),
        has_chains=any(k.group.family in (CHAINED, BUNDLED) for k in kernels),
    )


def _saved_launches(plan: MethodPlan) -> int:
    """Return the number of small products that one kernel may compute with what follows them."""
    graph, target = plan.graph, plan.subject.target
    products = (step for step in plan.steps if isinstance(step, Node) and qualifies(step, target))
    return sum(may_launch_less(node, graph) for node in products)


def _half_products(plan: MethodPlan) -> frozenset[str]:
    """Return the doubtful products of a plan, and those that their epilogues read: the kernel of
    one of these would compute the epilogue instead."""
    graph, target = plan.graph, plan.subject.target
    steps = (plan.steps[position] for position in plan.calls)
    found = [p for p in steps if isinstance(p, Product) and is_doubtful(p, graph, target)]
    read = (graph.node(m.tensor) for p in found for m in p.reads.values())
    others = (node for node in read if qualifies(node, target))
    return frozenset(node.origin for node in (*(p.node for p in found), *others))


def _launches(call: Node) -> int:
    return call.spec.launches if isinstance(call.spec, LayerCall) else 1


def _with_few_files(plans: Sequence[MethodPlan]) -> list[MethodPlan]:
    """Return the plans, in which several kernels share a file if there are many."""
    kernels = [c for plan in plans for c in plan.calls.values() if isinstance(c, KernelCall)]
    files = files_of(kernels)
    return [
        replace(
            plan,
            calls={
                k: replace(c, path=files[c.path]) if isinstance(c, KernelCall) else c
                for k, c in plan.calls.items()
            },
        )
        for plan in plans
    ]


def _bytes_at_the_border(graph: Graph) -> int:
    """Return the bytes of a graph's inputs and outputs."""
    nodes = [graph.node(name) for name in (*graph.inputs, *graph.outputs)]
    return sum(node.size * ITEM_BYTES.get(node.dtype, 8) for node in nodes)


def _method(
    plan: MethodPlan, options: Options, *, is_second: bool
) -> tuple[Method, dict[str, frozenset[str]]]:
    """Return the method that computes a plan, and the captured operators that each kernel
    replaces.
    """
    origins: dict[str, frozenset[str]] = {}
    titles: dict[str, str] = {}
    for position, call in plan.calls.items():
        step = plan.steps[position]
        if not isinstance(step, Node):
            origins[call.name] = origins.get(call.name, frozenset()) | origins_of(step)
            titles.setdefault(call.name, title(step)[:-1])
    uses = Counter(call.name for call in plan.calls.values())
    notes = kernel_notes(titles, uses)
    if plan.rewritten:
        notes.insert(0, f"merged into other operators: {listed(plan.rewritten)}")
    if once := plan.computed_once:
        notes.insert(0, f"computed once, because no input changes them: {listed(once)}")
    if products := plan.by_onednn:
        notes.insert(0, f"computed by oneDNN: {listed(products)}")
    notes[:0] = [f"{call}, in place of {listed(names)}" for call, names in plan.library.items()]
    if is_second:
        notes = [f"{BACKWARD}{note}" for note in notes]
        origins = {k: frozenset(f"{BACKWARD}{n}" for n in names) for k, names in origins.items()}
    subject = plan.subject
    parts = ModuleText(
        plan.graph,
        plan.prepared,
        subject.reference,
        subject.entry,
        subject.captured.arguments,
        subject.attribute,
        notes,
        "" if is_second else options.compile,
        options.graph and subject.device == "cuda" and subject.backward is None and not is_second,
        tuple(map(subject.attribute, subject.captured.states)),
        "backward" if is_second else "forward",
    )
    return Method(parts, plan.steps, plan.calls), origins
