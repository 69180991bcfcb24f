"""Compute a pool that follows a convolution in the convolution's kernel.

The rows of a tile are whole windows. The windows must not overlap, and their number of elements
must be a power of two. The convolution's result is then never stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.convolutions.convolution import TRANSPOSED, Convolution, Pool, volume_of
from cuagent.expert.convolutions.phases import Axis, axis_phases
from cuagent.expert.graph.graph import Graph, Kind, Node, Window
from cuagent.expert.graph.storage import NestError
from cuagent.expert.products.expressions import EXPRESSIONS
from cuagent.expert.streaming.group import Group

MOST_ELEMENTS = 16
"""Largest number of elements of a pooling window."""
OPERATIONS = ("max", "mean")


def with_pools(steps: Sequence[Any], graph: Graph) -> tuple[Any, ...]:
    """Return the steps with each pool moved into the kernel of the convolution that it reads, if it
    is the only reader."""
    result = list(steps)
    for step in steps:
        if not isinstance(step, Convolution) or step.is_copy or step.last:
            continue
        if len(step.outputs) > 1:
            continue
        group = _reader(step.outputs[0], steps, graph)
        found = _pooled(step, group, graph) if group is not None else None
        if found is not None and group is not None:
            result[result.index(group)] = found
            result.remove(step)
    return tuple(result)


def _reader(name: str, steps: Sequence[Any], graph: Graph) -> Group | None:
    """Return the fused group with the pool that is the only reader of tensor `name`; None if there
    is none."""
    readers = {user.name for user in graph.users()[name]}
    for step in steps:
        if isinstance(step, Group) and step.family == "pooling" and readers <= set(step.places):
            return step if readers and name not in graph.outputs else None
    return None


def _pooled(conv: Convolution, group: Group, graph: Graph) -> Convolution | None:
    """Return the convolution extended by the group's pool; None if the convolution's kernel cannot
    compute the pool."""
    (anchor,) = (n for n in group.nodes if n.kind in (Kind.POOL, Kind.RESAMPLE))
    others = [n for n in group.nodes if n is not anchor]
    if any(n.kind is not Kind.POINTWISE or n.op not in EXPRESSIONS for n in others):
        return None
    sizes = _sizes(conv, anchor)
    if not sizes or conv.reduces or any(graph.node(n).shape != anchor.shape for n in group.outputs):
        return None
    before = _producers(anchor, others)
    after = tuple(n for n in others if n not in before)
    early = {n.name for n in (*conv.nodes, *before)}
    if any(early & set(n.inputs) for n in after) or anchor.args[0] not in early:
        return None
    inner = early | {anchor.name} | {n.name for n in after}
    try:
        reads = {
            (n.name, arg): volume_of(graph, arg, anchor.shape if n in after else conv.node.shape)
            for n in others
            for arg in n.inputs
            if arg not in inner
        }
    except NestError:
        return None
    axes = conv.axes
    if conv.node.op == TRANSPOSED:
        axes = tuple(Axis(size, size, 1, 1, 0, 1) for size in conv.node.shape[2:])
    pool = Pool(anchor, sizes, anchor.shape[2:], after)
    return replace(
        conv,
        axes=axes,
        epilogue=(*conv.epilogue, *before),
        reads=conv.reads | reads,
        outputs=group.outputs,
        places=dict.fromkeys(inner, ()),
        dtypes=conv.dtypes | {volume.tensor: volume.dtype for volume in reads.values()},
        pool=pool,
    )


def _sizes(conv: Convolution, anchor: Node) -> tuple[int, ...]:
    """Return the pool's window size along each spatial dimension.

    () if the convolution's kernel cannot compute the pool.
    """
    one_phase = all(len(axis_phases(axis, conv.transposed)) == 1 for axis in conv.axes)
    given = conv.node.op == TRANSPOSED
    whole = given or len(conv.axes) == len(conv.node.shape) - 2
    if anchor.kind is not Kind.POOL or anchor.op not in OPERATIONS or not (one_phase and whole):
        return ()
    sizes = dict.fromkeys(range(2, len(conv.node.shape)), 1)
    for d, side in zip(anchor.dims, anchor.spec, strict=True):
        if d < 2 or not _is_plain(side):
            return ()
        sizes[d] = side.kernel
    count = 1
    for size in sizes.values():
        count *= size
    power = count & (count - 1) == 0
    return tuple(sizes.values()) if power and 1 < count <= MOST_ELEMENTS else ()


def _is_plain(side: Window) -> bool:
    """Return True for adjacent windows without overlap that lie inside the argument."""
    inside = side.count * side.kernel <= side.extent
    side_by_side = side.stride == side.kernel and side.dilation == 1 and side.padding == 0
    return side_by_side and inside and not side.adaptive


def _producers(anchor: Node, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return those of `nodes` on which `anchor` depends, in order."""
    needed = set(anchor.inputs)
    for node in reversed(nodes):
        if node.name in needed:
            needed |= set(node.inputs)
    return tuple(n for n in nodes if n.name in needed)
