"""Generate the files of one candidate from a captured module and a choice of options."""

from __future__ import annotations

import importlib.resources
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cuagent.expert.anchored.cluster import clusters
from cuagent.expert.attention import triton as fused_attention
from cuagent.expert.attention.kernel import AttentionStep, blocks, with_kernels
from cuagent.expert.attention.rewrite import Own, with_attention
from cuagent.expert.capture.constants import constant_values
from cuagent.expert.capture.export import Captured
from cuagent.expert.capture.subject import Subject, Target
from cuagent.expert.chains import CHAINED, with_chains
from cuagent.expert.convolutions import library as library_convolutions
from cuagent.expert.convolutions import triton as convolution
from cuagent.expert.convolutions.convolution import Convolution
from cuagent.expert.convolutions.copies import with_copies
from cuagent.expert.convolutions.linears import linears_to_channels
from cuagent.expert.convolutions.match import with_convolutions
from cuagent.expert.convolutions.operands import copy_operands
from cuagent.expert.convolutions.partials import is_partial, partial_sums, with_partials
from cuagent.expert.convolutions.pools import with_pools
from cuagent.expert.convolutions.qualify import runs_in_tf32
from cuagent.expert.convolutions.sums import sum_before_convolutions
from cuagent.expert.convolutions.tiles import tiles as convolution_tiles
from cuagent.expert.depthwise.match import with_depthwise
from cuagent.expert.families import ANCHORS, generate
from cuagent.expert.graph.graph import Graph, Kind, Node
from cuagent.expert.graph.layouts import with_layouts
from cuagent.expert.kernel import KernelCall, Request
from cuagent.expert.loops.groups import loop_groups
from cuagent.expert.loops.match import with_loops
from cuagent.expert.lower import lower
from cuagent.expert.method import FRESH, Call, Method, ModuleText, Steps, TritonCall
from cuagent.expert.module import render
from cuagent.expert.products import operands as products
from cuagent.expert.products import triton as matrix_product
from cuagent.expert.products.few_rows import transpose_weights
from cuagent.expert.products.match import Product, with_products
from cuagent.expert.products.tiles import ranked
from cuagent.expert.recurrences.groups import recurrence_groups
from cuagent.expert.recurrences.match import with_layers, with_recurrences
from cuagent.expert.rewrites import prepared_names, rewrite, share_equal
from cuagent.expert.rules.gathers import settle_gathers
from cuagent.expert.sharing import shared, shared_triton
from cuagent.expert.streaming.fuse import Group, fuse
from cuagent.expert.streaming.nest import NestError
from cuagent.expert.vectors import with_wide_vectors
from cuagent.expert.widening import widen_products, widens

CONVOLUTIONS = ("F.conv", "own F.conv")
"""Prefixes of the calls of convolutions, except depthwise ones."""
SMALL = 1 << 15
"""Most elements of one operation for which the time of the call counts on a CPU. For 8 x 192
elements, `torch.cat` takes 14 us, and a kernel that does the same 5."""
MOST_WORDS = 16
"""Largest number of operators that the description of a kernel names."""


@dataclass(frozen=True)
class Options:
    """One point of the search: rewrites, fusions and schedule."""

    fold: bool = True
    """True to fold per-channel arithmetic into the weights of the layer before it."""
    attention: bool = True
    """True to compute attention that is written as products and a softmax by the library's fused
    call."""
    own_attention: bool = False
    """CUDA: true to compute attention by own kernels also where the library has a call for it."""
    recurrences: bool = True
    """True to compute loops over cells by one call; on the CPU also recurrent layers by own
    kernels."""
    own_recurrences: bool = True
    """CUDA: true to compute recurrent layers by own kernels where one fits."""
    merge: bool = False
    """True to merge linear layers of the same input into one product."""
    constants: bool = True
    """True to compute values such as masks and position biases only once, if they depend on
    parameters alone."""
    widen: bool | None = None
    """Compute half-precision products in float32; None decides it from the processor."""
    products: bool = True
    """CUDA: true to compute matrix products, with the operations behind them, by own kernels."""
    exact_convolutions: bool = False
    """CUDA: true to compute float32 convolutions with float32 precision even where TF32 is
    admitted."""
    tf32_few_channels: bool = False
    """CUDA: true to use TF32, where it is admitted, also for float32 convolutions of few
    channels."""
    convolutions: str = "own"
    """CUDA: how convolutions are computed. "own": by own kernels where they may be faster; "every":
    by own kernels if one fits; "library": by torch in the captured layout; "channels_last": by
    torch in channels-last layout."""
    partial_sums: bool = True
    """CUDA: true to let convolution kernels also sum their results over spatial positions, for the
    norms and means that follow."""
    copies: bool = True
    """CUDA: true to let a convolution's kernel also write the channels-last copy that the next
    convolution reads."""
    split: bool = True
    """CUDA: true to split the operands of large float32 products into float16 parts before the
    product."""
    tiles: int = 0
    """CUDA: rank of the tile sizes that a product uses, in the order of the cost model; 0 is the
    best."""
    compile: str = ""
    """Mode of torch.compile for everything but the kernels; "" runs it eagerly."""
    keep: frozenset[str] = frozenset()
    """Names of the captured operators that remain calls of torch."""
    tile: int = 64
    """CPU: number of adjacent rows processed together if the reduced dimension is not the
    innermost."""
    threads: int = 0
    """CUDA threads per row; 0 chooses them from the row length."""
    vector: bool = True
    """CUDA: true to use 16-byte accesses if the shape allows them."""
    chains: bool = True
    """CPU: true to launch small kernels that follow one another by one call."""


@dataclass(frozen=True)
class Candidate:
    """A generated attempt: files by relative path, and a description of its kernels."""

    options: Options
    files: dict[str, str]
    kernels: tuple[str, ...]
    """Names of the kernels."""
    origins: tuple[frozenset[str], ...]
    """Captured operators that each kernel replaces, in the order of `kernels`."""
    notes: tuple[str, ...]
    """One line for each kernel, after one line for the rewrites."""
    folded: tuple[str, ...]
    """Captured operators that rewrites merged into others."""
    library: tuple[str, ...] = ()
    """Captured operators of the attentions, recurrences and loops that became one fused call
    each."""
    constants: tuple[str, ...] = ()
    """Captured operators whose values are computed once, because no input changes them."""
    has_products: bool = False
    """True if a kernel computes a matrix product or a convolution."""
    convolutions: int = 0
    """Number of convolutions, except depthwise ones."""
    library_convolutions: int = 0
    """Number of these convolutions that torch computes."""
    launches: int = 0
    """Number of calls of kernels and of torch in one call of the module."""
    has_recurrences: bool = False
    """True if a CUDA kernel computes all steps of a recurrent layer."""
    has_chains: bool = False
    """True if several kernels are launched by one call."""


def make_candidate(subject: Subject, options: Options) -> Candidate | None:
    """Return the candidate with these options; None if it would not differ from the reference."""
    if options.exact_convolutions:
        subject = replace(subject, target=replace(subject.target, tf32_convolutions=False))
    elif options.tf32_few_channels:
        subject = replace(subject, target=replace(subject.target, exact_channels=0))
    # Kernels share a namespace with the reference's helpers and arguments.
    taken = {*re.findall(r"\w+", subject.reference), *subject.captured.arguments}
    forward = _planned(subject, options, taken)
    if subject.backward is None:
        return _assemble(subject, options, [forward]) if forward.gains else None
    taken |= {*subject.backward.arguments, *(call.name for call in forward.calls.values())}
    # Names in `keep` without the prefix are operators of the forward.
    other = replace(subject, captured=subject.backward, backward=None)
    second = _planned(other, replace(options, compile="", keep=_of_backward(options.keep)), taken)
    return _assemble(subject, options, [forward, second]) if second.gains else None


BACKWARD = "backward: "
"""Prefix of the operators of the backward pass in `Options.keep` and `Candidate.origins`."""


def _of_backward(keep: frozenset[str]) -> frozenset[str]:
    return frozenset(n.removeprefix(BACKWARD) for n in keep if n.startswith(BACKWARD))


@dataclass(frozen=True)
class _Planned:
    """A captured graph after all rewrites, its steps, and the calls that compute them.

    `calls` has the kernel at each position in `steps` that has one. `rewritten` and `library` name
    the captured operators that rewrites and fused calls replaced.
    """

    subject: Subject
    graph: Graph
    prepared: frozenset[str]
    steps: Steps
    calls: dict[int, Call]
    rewritten: tuple[str, ...]
    library: dict[str, tuple[str, ...]]

    @property
    def gains(self) -> bool:
        """True if the method computes anything differently from the reference."""
        # A constant without inputs, such as zeros, is made again as quickly: storing it gains
        # nothing.
        saved = any(n.constant and n.inputs for n in self.graph.nodes)
        return bool(self.calls or self.rewritten or self.library or saved)


def _planned(subject: Subject, options: Options, taken: set[str]) -> _Planned:
    keep, whole = set(options.keep), set[str]()
    while True:
        captured, library = _with_library_calls(subject, options, frozenset(keep))
        constants = constant_values(captured) if options.constants else frozenset()
        before = share_equal(lower(captured, frozenset(keep), constants))
        graph = rewrite(before, fold=options.fold, merge=options.merge)
        graph = sum_before_convolutions(graph) if options.fold else graph
        graph = with_depthwise(graph, subject.device, frozenset(keep))
        if widens(subject.device) if options.widen is None else options.widen:
            graph = widen_products(graph)
        graph = settle_gathers(graph)
        if options.products:
            graph = products.as_reductions(graph, subject.target, frozenset(keep))
            graph = products.copy_operands(graph, subject.target, frozenset(keep), options.split)
            graph = linears_to_channels(graph, subject.target, frozenset(keep))
        if options.products and options.convolutions in ("own", "every"):
            every = options.convolutions == "every"
            graph = copy_operands(graph, subject.target, frozenset(keep), every)
            if options.partial_sums:
                graph = partial_sums(graph, subject.target.processors, frozenset(whole))
        channels_last = options.convolutions == "channels_last"
        graph = library_convolutions.arrange(graph, subject.device, frozenset(keep), channels_last)
        graph = transpose_weights(graph, subject.device, frozenset(keep))
        graph = with_layouts(graph)
        prepared = prepared_names(graph)
        own = (*recurrence_groups(graph), *loop_groups(graph))
        claimed = (*clusters(graph, ANCHORS, prepared), *own)
        on_gpu = subject.device == "cuda"
        fused = fuse(graph, outside=prepared, claimed=claimed, slices_count=on_gpu)
        steps: Steps = fused
        if options.products:
            found = with_products(fused, graph, subject.target, frozenset(keep), options.split)
            found, unjoined = with_partials(with_convolutions(found, graph), graph)
            if unjoined:
                whole |= unjoined
                continue
            found = with_pools(found, graph)
            found = with_copies(found, graph) if options.copies else found
            steps = with_kernels(found, graph, frozenset(keep))
        calls: dict[int, Call] = {}
        known: dict[str, KernelCall] = {}
        known_triton: dict[str, TritonCall] = {}
        rejected: set[str] = set()
        for position, step in enumerate(steps):
            if isinstance(step, Product | Convolution | AttentionStep):
                name = _kernel_name(step, {*taken, *(c.name for c in calls.values())})
                made = _triton(name, step, graph, subject.target, options)
                calls[position] = shared_triton(made, known_triton)
            if not isinstance(step, Group):
                continue
            origins = _origins(step)
            try:
                if not _may_gain(step, steps, graph, subject.device):
                    raise NestError("torch has a kernel for this operation")
                name = _kernel_name(step, {*taken, *(c.name for c in calls.values())})
                calls[position] = shared(_kernel(subject.device, name, step, graph, options), known)
            except NestError:
                work = {n.origin for n in step.nodes if n.origin and n.kind is not Kind.VIEW}
                rejected |= work or origins
        if not rejected - keep:
            break
        keep |= rejected
    if subject.device == "cpu" and options.chains:
        rebased = partial(_rebased_kernel, graph=graph, options=options)
        steps, calls = with_chains(steps, calls, graph, rebased, taken)
    rewritten = _changed(before, graph)
    return _Planned(subject, graph, prepared, steps, calls, rewritten, library)


def _with_library_calls(
    subject: Subject, options: Options, keep: frozenset[str]
) -> tuple[Captured, dict[str, tuple[str, ...]]]:
    """Return the captured graph with fused calls for attentions, recurrences and loops.

    Also return a dict from the description of a call to the captured operators that it replaces.
    """
    captured = subject.captured
    found: dict[str, tuple[str, ...]] = {}
    if options.attention:
        own = Own.ALWAYS if options.own_attention else Own.NEEDED
        own = own if options.products else Own.NEVER
        captured, names = with_attention(captured, subject.target, own)
        found |= {"one fused call for each attention": names} if names else {}
    if options.recurrences:
        captured, names = with_recurrences(captured, subject.device)
        found |= {"all steps of a recurrence in one call": names} if names else {}
        captured, names = with_loops(captured, subject.device, keep)
        found |= {"all steps of a loop in one kernel": names} if names else {}
        if options.own_recurrences and subject.device == "cuda":
            captured, names = with_layers(captured, subject.target)
            found |= {"a kernel for all steps of each layer": names} if names else {}
    return captured, found


def _origins(group: Group | Product | Convolution | AttentionStep) -> frozenset[str]:
    return frozenset(n.origin for n in group.nodes if n.origin)


def _may_gain(group: Group, steps: Steps, graph: Graph, device: str) -> bool:
    """Return False for one simple operation, for which torch already has a kernel.

    On the CPU such an operation still gains if it can work in place on a library call's result:
    memory that was just written is in the cache and needs no new pages.
    """
    work = [n for n in group.nodes if n.kind is not Kind.VIEW]
    origins = {n.origin for n in work}
    shared = any(
        origins & _origins(step) for step in steps if isinstance(step, Group) and step is not group
    )
    # A matrix product in a group was lowered to a scaling (diag(a) @ B), which is cheaper.
    algebra = any(origin.startswith(("matmul", "mm")) for origin in origins)
    users = graph.users()
    in_place = device == "cpu" and any(
        graph.node(a).op.startswith(FRESH)
        and len(users[a]) == 1
        and a not in graph.outputs
        and graph.node(a).size == group.size == n.size
        and not graph.node(a).constant
        for n in work
        for a in n.inputs
    )
    partial = any(is_partial(graph, a) for n in group.nodes for a in n.inputs)
    gathers = any(graph.node(a).kind in (Kind.GATHER, Kind.TAKE) for n in work for a in n.inputs)
    # torch writes one-hot integers and converts them in another pass.
    gathers |= any(n.op == "eq" and graph.node(n.inputs[-1]).kind is Kind.INDEX for n in work)
    widening = origins == {""}
    reduction = any(n.kind is Kind.REDUCE for n in work) and _is_alone(group, steps)
    reduction |= device == "cpu" and any(_is_slow_extreme(n, graph) for n in work)
    several = len(origins) > 1 or len(work) > 3 or group.family != "streaming"
    if device == "cpu" and group.size <= SMALL:
        reduction |= any(o.startswith(("cat", "stack")) for o in origins)
        reduction |= any(_touch(group, s, graph) for s in steps if isinstance(s, Group))
    return several or shared or algebra or in_place or widening or reduction or gathers or partial


def _touch(group: Group, other: Group, graph: Graph) -> bool:
    """Return True if one of two groups reads the other's results, perhaps through views.

    On a CPU both are then launched by one call, for which a call of torch between them would stop.
    """
    if group is other:
        return False
    pairs = ((group, other), (other, group))
    return any(
        _base(graph, a) in first.places for first, second in pairs for n in second.nodes
        for a in n.inputs if a not in second.places
    )  # fmt: skip


def _base(graph: Graph, name: str) -> str:
    """Return the value of which `name` is a view."""
    node = graph.node(name)
    while node.kind in (Kind.VIEW, Kind.STRIDED, Kind.WINDOW):
        node = graph.node(node.inputs[0])
    return node.name


def _is_slow_extreme(node: Node, graph: Graph) -> bool:
    """Return True for an extreme of rows that torch finds together with its index.

    That took 577 us instead of 60 for 1,024 rows of 512 elements.
    """
    some = node.kind is Kind.REDUCE and node.size > 1
    return some and node.op in ("amax", "amin") and node.origin.startswith(("max", "min"))


def _is_alone(group: Group, steps: Steps) -> bool:
    """Return True if no other step is a kernel or a library call.

    A timing of the module with and without this kernel then decides.
    """
    others = (step for step in steps if step is not group)
    return not any(not isinstance(s, Node) or s.kind is Kind.LIBRARY for s in others)


def _kernel_name(
    group: Group | Product | Convolution | AttentionStep, taken: Collection[str]
) -> str:
    """Return a name from at most four captured operators, such as `linear_gelu_kernel`."""
    origins = [n.origin for n in group.nodes if n.origin] or ["cast"]
    words = list(dict.fromkeys(re.sub(r"_\d+$", "", origin) for origin in origins))
    words += ["copy"] if isinstance(group, Convolution) and group.is_copy else []
    base = "_".join(words[:2] + words[-2:] if len(words) > 4 else words) + "_kernel"
    name, k = base, 2
    while name in taken:
        name, k = f"{base}{k}", k + 1
    return name


def _kernel(device: str, name: str, group: Group, graph: Graph, options: Options) -> KernelCall:
    request = Request(
        name, group, graph, _title(group), options.tile, options.threads, options.vector
    )
    return generate(device, request)


def _rebased_kernel(group: Group, graph: Graph, options: Options) -> KernelCall:
    request = Request("kernel", group, graph, _title(group), options.tile, rebased=True)
    return generate("cpu", request)


def _triton(
    name: str,
    step: Product | Convolution | AttentionStep,
    graph: Graph,
    target: Target,
    options: Options,
) -> TritonCall:
    if isinstance(step, AttentionStep):
        block = blocks(step, target, options.tiles)
        text = fused_attention.render(name, step, block.splits)
        return TritonCall(name, text, step, partial(fused_attention.launch, step=step, tile=block))

    def dtype_of(output: str) -> str:
        return graph.node(output).dtype

    if isinstance(step, Product):
        text = matrix_product.render(name, step, dtype_of)
        sizes = (step.rows, step.columns, step.node.dtype, target.processors, step.batch)
        tiles = ranked(*sizes, step.split)
        tile = tiles[min(options.tiles, len(tiles) - 1)]
        return TritonCall(name, text, step, partial(matrix_product.launch, product=step, tile=tile))
    found = convolution_tiles(step, target.processors)
    tile = found[min(options.tiles, len(found) - 1)]
    channels = step.channels_out if step.is_copy else step.channels_in
    precision = "tf32" if runs_in_tf32(target, channels) else "tf32x3"
    text = convolution.render(name, step, dtype_of, precision)
    return TritonCall(name, text, step, partial(convolution.launches, conv=step, tile=tile))


def _title(group: Group | Product | Convolution | AttentionStep) -> str:
    words = list(dict.fromkeys(n.origin for n in group.nodes if n.origin)) or ["cast"]
    if isinstance(group, Convolution) and group.is_copy:
        return f"Input of {words[0]} in channels-last layout."
    if len(words) > MOST_WORDS:
        words = [*words[:4], f"{len(words) - 8} operators", *words[-4:]]
    return f"{' -> '.join(words)} in one kernel."


def _changed(before: Graph, after: Graph) -> tuple[str, ...]:
    """Return the operators that rewrites removed, except arithmetic on parameters alone."""
    names = {n.name for n in after.nodes}
    prepared = prepared_names(before)
    changed = [n for n in before.nodes if n.name not in names and n.name not in prepared]
    changed += [
        n
        for n in before.nodes
        if n.kind is Kind.POINTWISE and n.name in names and after.node(n.name).kind is Kind.LIBRARY
    ]
    return tuple(dict.fromkeys(n.origin for n in changed if n.origin))


def _computed_once(graph: Graph) -> tuple[str, ...]:
    """Return the captured operators that depend on parameters alone and that others read."""
    users = graph.users()
    return tuple(
        n.origin
        for n in graph.nodes
        if n.constant and (n.name in graph.outputs or any(not u.constant for u in users[n.name]))
    )


def _assemble(subject: Subject, options: Options, plans: Sequence[_Planned]) -> Candidate:
    """Return the candidate of a forward, or of a forward and a backward."""
    found = [_method(plan, options, is_second=k > 0) for k, plan in enumerate(plans)]
    files = {"model_new.py": render(*(method for method, _ in found))}
    all_calls = [call for plan in plans for call in plan.calls.values()]
    kernels = [call for call in all_calls if isinstance(call, KernelCall)]
    for kernel in kernels:
        files[kernel.path] = with_wide_vectors(kernel.path, kernel.text)
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
        constants=tuple(name for plan in plans for name in _computed_once(plan.graph)),
        has_products=len(kernels) < len(all_calls),
        convolutions=len(
            {n.origin for plan in plans for n in plan.graph.nodes if n.op.startswith(CONVOLUTIONS)}
        ),
        library_convolutions=sum(n.op.startswith("F.conv") for n in library_calls),
        launches=len(all_calls) + len(library_calls),
        has_recurrences=any(
            k.group.family == "recurrences" and k.path.endswith(".cu") for k in kernels
        ),
        has_chains=any(k.group.family == CHAINED for k in kernels),
    )


def _method(
    plan: _Planned, options: Options, *, is_second: bool
) -> tuple[Method, dict[str, frozenset[str]]]:
    """Return the method of a plan, and the captured operators of each kernel."""
    origins: dict[str, frozenset[str]] = {}
    titles: dict[str, str] = {}
    for position, call in plan.calls.items():
        step = plan.steps[position]
        if not isinstance(step, Node):
            origins[call.name] = origins.get(call.name, frozenset()) | _origins(step)
            titles.setdefault(call.name, _title(step)[:-1])
    uses = Counter(call.name for call in plan.calls.values())
    notes = [
        f"{name}: {title}" + (f", used {uses[name]} times" if uses[name] > 1 else "")
        for name, title in titles.items()
    ]
    if plan.rewritten:
        notes.insert(0, f"merged into other operators: {', '.join(plan.rewritten)}")
    if once := _computed_once(plan.graph):
        notes.insert(0, f"computed once, because no input changes them: {', '.join(once)}")
    notes[:0] = [f"{call}, in place of {', '.join(names)}" for call, names in plan.library.items()]
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
        "backward" if is_second else "forward",
    )
    return Method(parts, plan.steps, plan.calls), origins
