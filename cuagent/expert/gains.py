"""Decide which groups get a generated kernel: those that torch would compute more slowly."""

from __future__ import annotations

from collections.abc import Sequence

from cuagent.expert.convolutions.partials import is_partial
from cuagent.expert.convolutions.stacked import is_of_stack
from cuagent.expert.free_casts import reads_half
from cuagent.expert.graph.graph import ITEM_BYTES, Graph, Kind, Node, contiguous_strides
from cuagent.expert.method import FRESH, Computed, Steps
from cuagent.expert.naming import origins_of
from cuagent.expert.slow_calls import is_slow_call
from cuagent.expert.streaming.group import Group

VECTOR_BYTES, LEAST_MOVED = 16, 1 << 20
"""Bytes of a vector access of a GPU, and the least size in bytes of a copy that gets a kernel.

torch copies permuted rows element by element. Its three copies around an attention (84 MB in
float32, 42 MB in bfloat16) took 99 and 76 us on an H200, 1.7 and 1.1 TB/s read and written of some
4.2. The kernels that replace two of them were not timed yet.
"""
STEPWISE = (
    "poisson_nll_loss", "kl_div", "l1_loss", "margin_ranking_loss", "hinge_embedding_loss",
)  # fmt: skip
"""Operators that torch computes by one kernel for each elementwise operation."""
WRITTEN_TWICE = ("slice_scatter", "select_scatter", "constant_pad", "pad", "masked_fill")
"""Operators for which torch fills or copies the whole result on a GPU, and then writes a part of it
again."""
SMALL = 1 << 15
"""Largest number of elements of an operation for which the time of the call matters on a CPU.

For 8 x 192 elements, `torch.cat` takes 14 us, and a kernel that does the same 5.
"""


def may_gain(group: Group, steps: Steps, graph: Graph, device: str) -> bool:
    """Return False for a group of one simple operation for which torch has a kernel that is as
    fast.

    On the CPU a generated kernel can still be faster if it works in place on a library call's
    result: memory that was just written is in the cache and needs no new pages.
    """
    work = [n for n in group.nodes if n.kind is not Kind.VIEW]
    origins = {n.origin for n in work}
    shared = any(
        origins & origins_of(step)
        for step in steps
        if isinstance(step, Computed) and step is not group
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
    gathers |= device == "cuda" and any(_joins_gathered(n, graph) for n in work)
    # torch writes one-hot integers and converts them in another pass.
    gathers |= any(n.op == "eq" and graph.node(n.inputs[-1]).kind is Kind.INDEX for n in work)
    # Without a kernel that adds its bias, a convolution is not part of a merged one.
    stacked = any(is_of_stack(graph, a) for n in work for a in n.inputs)
    widening = origins == {""}
    reduction = any(n.kind is Kind.REDUCE for n in work) and _is_alone(group, steps)
    reduction |= device == "cuda" and _only_kernels_with_a_reduction(steps)
    several = device == "cuda" and any(
        moves_vectors(n, graph) or _joins_slices(n, graph) for n in work
    )
    broadcast = device == "cuda" and _is_alone(group, steps) and _broadcasts(work, graph)
    broadcast |= device == "cuda" and is_slow_call(group, graph)
    reduction |= device == "cpu" and any(_is_slow_extreme(n, graph) for n in work)
    # Another operator, the conversion of the operand, became a part of the load.
    several |= any(reads_half(graph, n) and n.op != "cast" for n in work)
    several |= any(_computes_most(n, graph) for n in work)
    several |= len(work) > 1 and any(o.startswith(STEPWISE) for o in origins)
    several |= device == "cuda" and any(o.startswith(WRITTEN_TWICE) for o in origins)
    several |= stacked or len(origins) > 1 or len(work) > 3 or group.family != "streaming"
    if device == "cpu" and group.size <= SMALL:
        reduction |= any(o.startswith(("cat", "stack")) for o in origins)
        reduction |= any(_touch(group, s, graph) for s in steps if isinstance(s, Group))
    several |= broadcast or any(name in graph.parts for name in group.outputs)
    return several or shared or algebra or in_place or widening or reduction or gathers or partial


def _joins_gathered(node: Node, graph: Graph) -> bool:
    """Return True if a concatenation reads a part through an index tensor. torch stores such a part
    first, and copies it."""
    windows = [graph.node(a) for a in node.inputs if graph.node(a).kind is Kind.WINDOW]
    sources = [graph.node(graph.owner(w.name)) for w in windows]
    return any(source.kind in (Kind.GATHER, Kind.TAKE) for source in sources)


def _computes_most(node: Node, graph: Graph) -> bool:
    """Return True for an operation that a concatenation computes again, in place of storing a part
    of at least half of its size."""
    if node.kind is not Kind.POINTWISE or not node.origin.startswith(("cat", "stack")):
        return False
    windows = [graph.node(a) for a in node.inputs if graph.node(a).kind is Kind.WINDOW]
    sizes = [(w.window[1] - w.window[0]) / w.shape[w.dims[0]] for w in windows]
    return node.op not in ("where", "cast") and max(sizes, default=0.0) >= 0.5


def _touch(group: Group, other: Group, graph: Graph) -> bool:
    """Return True if one of two groups reads the other's results, perhaps through views.

    On a CPU one call then launches both; a torch call between them would prevent that.
    """
    if group is other:
        return False
    pairs = ((group, other), (other, group))
    return any(
        graph.owner(a) in first.places for first, second in pairs for n in second.nodes
        for a in n.inputs if a not in second.places
    )  # fmt: skip


def _is_slow_extreme(node: Node, graph: Graph) -> bool:
    """Return True for a row extreme whose captured operator also finds the index, but only values
    are used.

    torch took 577 us for it instead of 60 for 1,024 rows of 512 elements.
    """
    some = node.kind is Kind.REDUCE and node.size > 1
    return some and node.op in ("amax", "amin") and node.origin.startswith(("max", "min"))


def moves_vectors(node: Node, graph: Graph) -> bool:
    """Return True for a copy of permuted rows whose innermost dimension stays in place and consists
    of whole vectors."""
    source = graph.node(node.inputs[0]) if node.inputs else node
    if node.op != "cast" or source.kind is not Kind.STRIDED or source.shape != node.shape:
        return False
    item = ITEM_BYTES.get(node.dtype, 0)
    whole = item > 0 and source.dtype == node.dtype and node.shape[-1] * item % VECTOR_BYTES == 0
    aligned = all(s * item % VECTOR_BYTES == 0 for s in (*source.strides[:-1], source.offset))
    moved = source.strides != contiguous_strides(source.shape)
    return (
        whole and aligned and moved and source.strides[-1] == 1 and node.size * item >= LEAST_MOVED
    )


def _joins_slices(node: Node, graph: Graph) -> bool:
    """Return True for a large concatenation of whole vectors in which one part is no contiguous
    tensor, such as a permuted slice of a product.

    torch copies only contiguous parts in vectors. It took 0.81 ms for one with a permuted part on
    an H200, and 0.13 ms for one of the same size with contiguous parts (268 MB in bfloat16).
    """
    item = ITEM_BYTES.get(node.dtype, 0)
    if node.op != "where" or node.size * item < LEAST_MOVED:
        return False
    if graph.node(node.inputs[0]).kind is not Kind.INSIDE or node.shape[-1] * item % VECTOR_BYTES:
        return False
    parts = [graph.node(a) for a in node.inputs[1:]]
    while nested := [p for p in parts if p.kind is Kind.POINTWISE]:
        if any(p.op != "where" for p in nested):
            return False
        parts = [p for p in parts if p.kind is not Kind.POINTWISE]
        parts += [graph.node(a) for p in nested for a in p.inputs[1:]]
    windows = [p for p in parts if p.kind is Kind.WINDOW]
    sources = [graph.node(p.inputs[0]) for p in windows] + [p for p in parts if p not in windows]
    edges = [e for p in windows if p.dims[-1] == len(p.shape) - 1 for e in p.window]
    places = [p.strides if p.kind is Kind.STRIDED else contiguous_strides(p.shape) for p in sources]
    steps = [*edges, *(p.offset for p in sources), *(s for place in places for s in place[:-1])]
    whole = all(step * item % VECTOR_BYTES == 0 for step in steps)
    adjacent = all(place[-1] == 1 for place in places)
    return whole and adjacent and any(p.kind is Kind.STRIDED for p in sources)


def _is_alone(group: Group, steps: Steps) -> bool:
    """Return True if no other step of the method is a kernel or a library call.

    A timing of the module with and without this kernel then decides.
    """
    others = (step for step in steps if step is not group)
    return not any(not isinstance(s, Node) or s.kind is Kind.LIBRARY for s in others)


def _only_kernels_with_a_reduction(steps: Steps) -> bool:
    """Return True if kernels compute the whole method, and one of them reduces.

    torch's elementwise kernels after a reduction read its result as a broadcast operand
    (`_broadcasts`). A timing of the module then decides.
    """
    work = [s for s in steps if not isinstance(s, Node) or s.kind is Kind.LIBRARY]
    reduces = (n.kind is Kind.REDUCE for s in work if isinstance(s, Group) for n in s.nodes)
    return all(isinstance(s, Group) for s in work) and any(reduces)


def _broadcasts(work: Sequence[Node], graph: Graph) -> bool:
    """Return True if an operand is smaller than the result, as the channel scales of a norm are.

    torch's elementwise kernels use vectors only if all operands have the same layout.
    """
    return any(graph.node(a).size < n.size for n in work for a in n.inputs)
