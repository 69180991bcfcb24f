"""Plan a method: rewrite a captured graph, divide it into steps, and generate the steps' kernels.

A step is left to torch if its kernel cannot be generated or would not be faster. Its operators then
remain torch calls and the graph is planned again, because torch needs other operands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from cuagent.expert.anchored.cluster import clusters
from cuagent.expert.attention.heads import with_heads_inside
from cuagent.expert.attention.kernel import with_kernels
from cuagent.expert.attention.rewrite import Own, with_attention
from cuagent.expert.attention.slices import read_slices
from cuagent.expert.attention.unfused import with_expanded
from cuagent.expert.bundles import with_bundles
from cuagent.expert.calls import group_call, rebased_call, triton_call
from cuagent.expert.capture.complex_pairs import with_pairs
from cuagent.expert.capture.constants import constant_values
from cuagent.expert.capture.empty_parts import without_empty_parts
from cuagent.expert.capture.export import Captured
from cuagent.expert.capture.fills import with_constant_fills
from cuagent.expert.capture.row_orders import with_row_orders
from cuagent.expert.capture.single_copies import with_single_copies
from cuagent.expert.capture.subject import Subject
from cuagent.expert.chains import with_chains
from cuagent.expert.convolutions import library as library_convolutions
from cuagent.expert.convolutions.averages import average_before_convolutions
from cuagent.expert.convolutions.copies import with_copies
from cuagent.expert.convolutions.library import Layout
from cuagent.expert.convolutions.linears import linears_of_channels, linears_to_channels
from cuagent.expert.convolutions.match import with_convolutions
from cuagent.expert.convolutions.one_place import without_places
from cuagent.expert.convolutions.operands import copy_operands
from cuagent.expert.convolutions.partials import partial_sums, with_partials
from cuagent.expert.convolutions.pools import with_pools
from cuagent.expert.convolutions.qualify import loses_precision, qualifies
from cuagent.expert.convolutions.sums import sum_before_convolutions
from cuagent.expert.depthwise.match import with_depthwise
from cuagent.expert.edits import prepared_names
from cuagent.expert.einsums.match import with_einsums
from cuagent.expert.families import ANCHORS
from cuagent.expert.free_casts import is_free, read_before_widening
from cuagent.expert.gains import may_gain
from cuagent.expert.graph.copied_slices import slice_before_copies
from cuagent.expert.graph.graph import Graph, Kind
from cuagent.expert.graph.layouts import with_layouts
from cuagent.expert.graph.readers import wanted_orders
from cuagent.expert.graph.reshapes import operate_before_reshapes
from cuagent.expert.graph.storage import NestError
from cuagent.expert.joins import parts_of
from cuagent.expert.kernel import KernelCall
from cuagent.expert.loops.groups import loop_groups
from cuagent.expert.loops.match import LOOP, with_loops
from cuagent.expert.lower import lower
from cuagent.expert.method import Call, Steps, TritonCall, TritonStep
from cuagent.expert.mlps.chain import with_layer_chains
from cuagent.expert.mlps.match import with_mlps
from cuagent.expert.moved_parameters import store_moved_parameters
from cuagent.expert.naming import kernel_name, origins_of
from cuagent.expert.options import Options
from cuagent.expert.products import operands as products
from cuagent.expert.products.few_rows import transpose_weights
from cuagent.expert.products.match import with_products
from cuagent.expert.products.onednn import by_onednn, origins_by_onednn
from cuagent.expert.products.rows import copy_rows
from cuagent.expert.products.transposes import transposed_products
from cuagent.expert.recurrences.groups import recurrence_groups
from cuagent.expert.recurrences.match import MADE, with_layers, with_recurrences
from cuagent.expert.rewrites import rewrite, share_equal
from cuagent.expert.rules.gathers import unfused_gathers_to_torch
from cuagent.expert.sharing import shared, shared_triton
from cuagent.expert.streaming.cuda import fills_gpu
from cuagent.expert.streaming.fuse import fuse
from cuagent.expert.streaming.group import Group
from cuagent.expert.widening import widen_products, widens

_Fused = tuple[Captured, dict[str, tuple[str, ...]], frozenset[str]]


@dataclass(frozen=True)
class MethodPlan:
    """A captured graph after all rewrites, its steps, and the kernels that compute steps."""

    subject: Subject
    graph: Graph
    prepared: frozenset[str]
    """Names of the nodes that depend on parameters alone; the module computes them once."""
    steps: Steps
    calls: dict[int, Call]
    """Kernel of each step that has one, by the step's position in `steps`."""
    rewritten: tuple[str, ...]
    """Names of the captured operators that rewrites merged into other operators."""
    library: dict[str, tuple[str, ...]]
    """Names of the captured operators that a fused call replaces; the key describes the call."""

    @property
    def by_onednn(self) -> tuple[str, ...]:
        """Captured products that oneDNN computes in place of torch's call."""
        return origins_by_onednn(self.graph)

    @property
    def gains(self) -> bool:
        """True if the method computes something differently from the reference."""
        # A constant without inputs, such as zeros, is made again as quickly: storing it gains
        # nothing.
        saved = any(n.constant and n.inputs for n in self.graph.nodes)
        return bool(self.calls or self.rewritten or self.library or saved or self.by_onednn)

    @property
    def computed_once(self) -> tuple[str, ...]:
        """Names of the captured operators that the module computes once, because parameters decide
        them.
        """
        graph, users = self.graph, self.graph.users()
        return tuple(
            n.origin
            for n in graph.nodes
            if n.constant
            and (n.name in graph.outputs or any(not u.constant for u in users[n.name]))
        )


def plan_method(subject: Subject, options: Options, taken: set[str]) -> MethodPlan:
    """Return the plan for a captured graph. Names in `taken` are not used for kernels."""
    kept, whole = options.keep, frozenset[str]()
    own = subject.device == "cuda" and options.products and not options.compile
    chosen: frozenset[str] | None = frozenset() if own else None
    fused: dict[frozenset[str], _Fused] = {}
    while True:
        # The captured graph depends on the names of loops and recurrent layers alone.
        loops = frozenset(n for n in kept if n.endswith(LOOP) or MADE.fullmatch(n))
        if loops not in fused:
            fused[loops] = _with_library_calls(subject, options, loops)
        captured, library, constants = fused[loops]
        lowered = lower(captured, kept, constants, chosen, many_lookups=subject.device == "cuda")
        lowered = share_equal(lowered)
        graph = _rewritten(lowered, subject, options, kept, whole)
        steps, unjoined = _steps(graph, subject, options, kept)
        if unjoined:
            whole |= unjoined
            continue
        parts, alone = parts_of(steps, graph)
        if chosen is not None and alone - chosen:
            chosen |= alone
            continue
        if parts:
            graph = replace(graph, parts=parts)
            steps, _ = _steps(graph, subject, options, kept)
        calls, rejected = _calls(steps, graph, subject, options, taken, kept)
        if rejected <= kept:
            break
        kept |= rejected
    if subject.device == "cuda" and options.chains and not options.compile:
        steps, calls = with_bundles(steps, calls, graph, taken)
    if subject.device == "cpu" and options.chains:
        rebased = partial(rebased_call, graph=graph, options=options)
        steps, calls = with_chains(steps, calls, graph, rebased, taken)
    prepared = prepared_names(graph)
    return MethodPlan(subject, graph, prepared, steps, calls, _changed(lowered, graph), library)


def _with_library_calls(subject: Subject, options: Options, keep: frozenset[str]) -> _Fused:
    """Return (captured graph with fused calls for attentions, recurrences and loops, replaced
    operators, operators whose values are computed once).

    The second is as in `MethodPlan.library`. `keep` names the loops and recurrent layers that
    remain.
    """
    captured = with_constant_fills(without_empty_parts(with_pairs(subject.captured)))
    if subject.device == "cuda":
        captured = with_single_copies(captured)
    found: dict[str, tuple[str, ...]] = {}
    if options.attention and options.products:
        captured, names = with_expanded(captured, subject.target)
        found |= {"two products for each attention": names} if names else {}
    if options.attention:
        own = Own.ALWAYS if options.own_attention else Own.NEEDED
        own = own if options.products else Own.NEVER
        captured, names = with_attention(captured, subject.target, own)
        found |= {"one fused call for each attention": names} if names else {}
    if options.attention and subject.device == "cuda":
        captured = with_heads_inside(captured)
    if subject.device == "cuda":
        captured = with_row_orders(captured)
    if options.recurrences:
        captured, names = with_recurrences(captured, subject.device, keep)
        found |= {"all steps of a recurrence in one call": names} if names else {}
        captured, names = with_loops(captured, subject.device, keep)
        found |= {"all steps of a loop in one kernel": names} if names else {}
        if options.own_recurrences and subject.device == "cuda":
            captured, names = with_layers(captured, subject.target, keep)
            found |= {"a kernel for all steps of each layer": names} if names else {}
    return captured, found, constant_values(captured) if options.constants else frozenset()


def _rewritten(
    graph: Graph,
    subject: Subject,
    options: Options,
    kept: frozenset[str],
    whole: frozenset[str],
) -> Graph:
    """Return the graph after all rewrites.

    `kept` names the captured operators that remain calls of torch, `whole` those whose sums over
    places are not split into partial sums.
    """
    target = subject.target
    graph = rewrite(graph, fold=options.fold, merge=options.merge)
    graph = without_places(graph, kept)
    if target.device == "cuda":
        graph = slice_before_copies(graph)
    own = options.products and options.convolutions in ("own", "every")
    if options.fold:
        graph = average_before_convolutions(graph)
        every = options.convolutions == "every"
        graph = sum_before_convolutions(
            graph,
            lambda new, conv: (
                not loses_precision(new, conv, target)
                or (own and conv.origin not in kept and qualifies(new, conv, target, every))
            ),
        )
    graph = transposed_products(graph, target.device, kept)
    graph = with_depthwise(graph, target.device, kept)
    if widens(target.device) if options.widen is None else options.widen:
        graph = widen_products(graph)
    graph = unfused_gathers_to_torch(graph)
    if options.products:
        graph = with_mlps(graph, target.device, kept)
        graph = products.as_reductions(graph, target, kept)
        graph = products.copy_operands(graph, target, kept, options.split)
        graph = linears_to_channels(graph, target, kept)
    layout = _layout(graph, subject, options, kept)
    if own and layout is not Layout.NETWORK:
        graph = copy_operands(graph, target, kept, options.convolutions == "every")
        if options.partial_sums:
            graph = partial_sums(graph, target.processors, whole)
    graph = library_convolutions.arrange(graph, target, kept, layout)
    graph = transpose_weights(graph, target.device, kept)
    # torch.compile does not take these calls with weights that are not packed.
    graph = graph if options.compile else by_onednn(graph, target.device, kept)
    if options.products:
        graph = linears_of_channels(graph, target, kept)
    graph = read_before_widening(graph)
    graph = with_layouts(graph, wanted_orders(graph) if target.device == "cuda" else None)
    graph = operate_before_reshapes(graph, ANCHORS)
    graph = copy_rows(graph, target.device, kept)
    if target.device == "cuda":
        graph = read_slices(graph)
    return store_moved_parameters(graph, target.device)


def _layout(graph: Graph, subject: Subject, options: Options, kept: frozenset[str]) -> Layout:
    """Return the layout in which the library computes convolutions."""
    first = options.convolutions == "own" and options.products
    if first and library_convolutions.in_network(graph, subject.target, kept):
        return Layout.NETWORK
    if options.convolutions == "network" and library_convolutions.may_be_network(graph, kept):
        return Layout.NETWORK
    last = options.convolutions == "channels_last"
    return Layout.TRANSPOSED if last else Layout.CAPTURED


def _steps(
    graph: Graph, subject: Subject, options: Options, kept: frozenset[str]
) -> tuple[Steps, frozenset[str]]:
    """Return the steps that compute a graph, and the captured operators whose partial sums fit no
    kernel.

    The graph must be rewritten again without partial sums of these operators.
    """
    prepared = prepared_names(graph)
    own = (*recurrence_groups(graph), *loop_groups(graph))
    claimed = (*clusters(graph, ANCHORS, prepared), *own)
    on_gpu = subject.device == "cuda"
    fills = None
    if on_gpu and options.vector and not options.threads:
        fills = partial(fills_gpu, graph=graph, clusters=subject.target.has_clusters)
    fused = fuse(graph, outside=prepared, claimed=claimed, slices_count=on_gpu, fills=fills)
    if not options.products:
        return fused, frozenset()
    small = options.small_products
    chained = with_layer_chains(fused, graph, subject.target, kept) if small else fused
    found = with_products(chained, graph, subject.target, kept, options.split, small)
    found = with_einsums(found, graph, subject.target, kept)
    found, unjoined = with_partials(with_convolutions(found, graph), graph)
    if unjoined:
        return found, unjoined
    found = with_pools(found, graph)
    found = with_copies(found, graph) if options.copies else found
    return with_kernels(found, graph, kept), frozenset()


def _calls(
    steps: Steps,
    graph: Graph,
    subject: Subject,
    options: Options,
    taken: set[str],
    kept: frozenset[str],
) -> tuple[dict[int, Call], frozenset[str]]:
    """Return the kernel of each step, by position, and the names of the operators to leave to
    torch, besides those in `kept`.
    """
    calls: dict[int, Call] = {}
    known: dict[str, KernelCall] = {}
    known_triton: dict[str, TritonCall] = {}
    rejected: set[str] = set()
    target = subject.target
    for position, step in enumerate(steps):
        names = {*taken, *(call.name for call in calls.values())}
        if isinstance(step, TritonStep):
            made = triton_call(kernel_name(step, names), step, graph, target, options)
            calls[position] = shared_triton(made, known_triton)
        if not isinstance(step, Group):
            continue
        try:
            if not may_gain(step, steps, graph, target.device):
                raise NestError("torch has a kernel for this operation")
            call = group_call(kernel_name(step, names), step, graph, target, options)
            calls[position] = shared(call, known)
        except NestError:
            work = {n.origin for n in step.nodes if n.origin and n.kind is not Kind.VIEW}
            parts = {name for name in work - kept if name.startswith(("cat", "stack"))}
            # Stored in one piece, a concatenation may suit the reductions that read it.
            rejected |= (parts if step.reduced else None) or work or origins_of(step)
    return calls, frozenset(rejected)


def _changed(before: Graph, after: Graph) -> tuple[str, ...]:
    """Return the names of the operators that rewrites removed, except arithmetic on parameters
    alone.
    """
    names = {n.name for n in after.nodes}
    prepared = prepared_names(before)
    changed = [
        n
        for n in before.nodes
        if n.name not in names and n.name not in prepared and not is_free(before, n)
    ]
    changed += [
        n
        for n in before.nodes
        if n.kind is Kind.POINTWISE and n.name in names and after.node(n.name).kind is Kind.LIBRARY
    ]
    changed += [
        n
        for n in before.nodes
        if n.op.startswith("F.conv") and n.name in names and after.node(n.name).kind is Kind.VIEW
    ]
    return tuple(dict.fromkeys(n.origin for n in changed if n.origin))
