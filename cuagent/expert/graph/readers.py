"""Choose the order in memory of computed values by the calls of the library that read them.

A kernel reads operands in any order through shared memory, but a linear layer of torch copies an
argument whose features are not adjacent, and a convolution one whose channels are not, and both
copies are slow. Elementwise values otherwise take the order of their arguments (`layouts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from cuagent.expert.graph.graph import JOIN, Graph, Kind, Node, contiguous_strides, reshaped
from cuagent.expert.graph.layouts import OWN
from cuagent.expert.graph.orders import (
    CHANNELS_LAST,
    Order,
    by_stride,
    inverse,
    order_of,
    permuted,
)

LONGEST_ROW = 1024
"""Largest number of elements of a reduced row that a kernel reads in another order: a block keeps
eight rows in shared memory."""
INSIDE_KERNELS = (Kind.POINTWISE, Kind.REDUCE, Kind.VIEW, Kind.STRIDED)
"""Kinds of readers that may be part of the kernel that computes a value."""


def wanted_orders(graph: Graph) -> dict[str, Order]:
    """Return the order in which elementwise nodes are to be stored, where all readers that need an
    order need the same one, and one kernel can compute the node in it.

    The order of an output holds for values that only this output's kernel reads.
    """
    wanted: dict[str, Order] = {}
    found = dict[str, set[Order | None]]()
    users, read = graph.users(), set[str]()
    orders = graph.orders or ((),) * len(graph.outputs)
    for name, order in zip(graph.outputs, orders, strict=True):
        # The strides of a slice are those of the whole value, which has no order here.
        slice_, shuffle = _is_slice(graph, graph.node(name)), _is_shuffle(graph, graph.owner(name))
        kept = CHANNELS_LAST if shuffle and len(graph.node(name).shape) == 4 else order
        _want(graph, graph.node(name), None if slice_ else kept, found)
    for node in reversed(graph.nodes):
        (needed, *others) = found.get(node.name, {None})
        own = None if others else needed
        if own is not None and node.op.startswith(JOIN) and node.dims:
            wanted[node.name] = own
        for name, for_it in _needs(node, wanted):
            read |= _want(graph, graph.node(name), for_it, found)
        if node.kind is not Kind.POINTWISE or own is None:
            continue
        wanted[node.name] = own
        for name in _whole(graph, node):
            if node.name in read:
                read |= _want(graph, graph.node(name), own, found)
            elif len(users[name]) == 1:
                _want(graph, graph.node(name), own, found)
    return _possible(graph, wanted)


def _needs(node: Node, wanted: Mapping[str, Order]) -> Iterator[tuple[str, Order | None]]:
    """Yield the arguments that a node would copy in another order, or read more slowly, and the
    order; None for arguments whose order the result follows, or that should keep their own."""
    if node.kind in (*INSIDE_KERNELS, Kind.WINDOW):
        return
    calls = (f"{start}F.conv2d(" for start in ("", OWN))
    if node.kind is Kind.LIBRARY and node.op.startswith("F.linear("):
        yield str(node.args[0]), ()
    elif node.op.startswith(tuple(calls)) and node.order == CHANNELS_LAST:
        yield str(node.args[0]), CHANNELS_LAST
    else:  # The parts of a concatenation have its order.
        yield from ((name, wanted.get(node.name)) for name in node.inputs)


def _whole(graph: Graph, node: Node) -> list[str]:
    return [a for a in node.inputs if graph.node(a).shape == node.shape]


def _want(
    graph: Graph, node: Node, order: Order | None, found: dict[str, set[Order | None]]
) -> set[str]:
    """Add the order of `node` that a reader needs, to the value whose memory the node views, and
    return this value's name; None is any order."""
    owner = (graph.owner(node.name), None)
    pairs = [owner] if order is None else _owners(graph, node, order, near=True)
    for name, needed in pairs:
        found.setdefault(name, set()).add(needed)
    return {name for name, _ in pairs}


def _owners(
    graph: Graph, node: Node, order: Order, *, near: bool = False
) -> list[tuple[str, Order]]:
    """Return the value that `node` views, and its order if the node's order is `order`; nothing if
    it has no such order.

    With `near` the order may differ inside the dimensions that a reshape of the value makes of one:
    a channel shuffle reads channels of channels-last images in another order.
    """
    strides = permuted(contiguous_strides(permuted(node.shape, order)), inverse(order))
    while node.kind in (Kind.VIEW, Kind.STRIDED) or (near and node.kind is Kind.WINDOW):
        base = graph.node(node.inputs[0])
        before = _strides_before(node, base, strides, near=near)
        if before is None:
            return []
        node, strides = base, before
    found = order_of(node.shape, strides)
    return [] if found is None else [(node.name, found)]


def _strides_before(
    node: Node, base: Node, strides: tuple[int, ...], *, near: bool
) -> tuple[int, ...] | None:
    """Return the strides that `base` has if `node`, which reads it, has `strides`; None if there
    are none."""
    if node.kind is Kind.WINDOW:
        inner = by_stride(node.shape, strides)
        return permuted(contiguous_strides(permuted(base.shape, inner)), inverse(inner))
    if node.kind is Kind.STRIDED:
        return _before_slice(node, base, strides)
    exact = reshaped(node.shape, strides, base.shape)
    return _near_strides(node, strides, base) if exact is None and near else exact


def _near_strides(node: Node, strides: Sequence[int], base: Node) -> tuple[int, ...] | None:
    """Return the strides of `base` in the order of the dimensions of `node`, each of which is a
    part of one dimension of `base`; None if these parts are not adjacent in memory."""
    owners, dim = [], 0
    for d, n in enumerate(node.shape):
        while math.prod(node.shape[:d]) >= math.prod(base.shape[: dim + 1]) and n > 1:
            dim += 1
        if n > 1 and math.prod(node.shape[: d + 1]) > math.prod(base.shape[: dim + 1]):
            return None
        owners.append(dim)
    inner = [d for d, n in enumerate(node.shape) if n > 1]
    outermost = sorted(inner, key=lambda d: -strides[d])
    blocks = [dim for dim, _ in groupby(owners[d] for d in outermost)]
    if len(set(blocks)) < len(blocks):
        return None
    order = (*(d for d in range(len(base.shape)) if d not in blocks), *blocks)
    return permuted(contiguous_strides(permuted(base.shape, order)), inverse(order))


def _before_slice(node: Node, base: Node, strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of `base` in the order of dimensions in which its slice or permuted view
    `node` has `strides`; None if a dimension of `node` is not one of `base`."""
    steps = zip(contiguous_strides(base.shape), base.shape, strict=True)
    dims = {step: d for d, (step, n) in enumerate(steps) if n > 1}
    sides = zip(node.strides, node.shape, strides, strict=True)
    moved = [(to, dims.get(s)) for s, n, to in sides if n > 1]
    found = [d for _, d in sorted(moved, key=lambda side: -side[0])]
    inner = [d for d in found if d is not None]
    if len(set(inner)) < len(found) or set(inner) != set(dims.values()):
        return None
    order = (*(d for d, n in enumerate(base.shape) if n == 1), *inner)
    return permuted(contiguous_strides(permuted(base.shape, order)), inverse(order))


def _possible(graph: Graph, wanted: dict[str, Order]) -> dict[str, Order]:
    """Return the orders that kernels can store, without the others."""
    while bad := [name for name in wanted if not _is_possible(graph, name, wanted)]:
        wanted = {name: order for name, order in wanted.items() if name not in bad}
    return wanted


def _is_possible(graph: Graph, name: str, wanted: Mapping[str, Order]) -> bool:
    """Return True if the kernel that computes a value can store it in its wanted order.

    Values of the same kernel must have the same order, and the reduced rows must be innermost.
    """
    order, users = wanted[name], graph.users()
    for arg in (name, *_whole(graph, graph.node(name))):
        read = graph.node(arg)
        if any(u.kind is Kind.REDUCE and not _is_row(u, read, order) for u in users[arg]):
            return False
        owner = graph.node(graph.owner(arg))
        inside = owner.kind is Kind.POINTWISE and owner.name not in graph.outputs
        inside = inside and all(u.kind in INSIDE_KERNELS for u in users[owner.name])
        inside = inside and not _is_slice(graph, read) and not _copies(graph, name)
        if inside and [(owner.name, wanted.get(owner.name))] != _owners(graph, read, order):
            return False
    return True


def _copies(graph: Graph, name: str) -> bool:
    """Return True for a copy of a view, which a kernel may compute alone."""
    node = graph.node(name)
    views = node.kind is Kind.POINTWISE and node.op == "cast" and bool(node.inputs)
    return views and graph.node(node.inputs[0]).kind is Kind.STRIDED


def _is_slice(graph: Graph, node: Node) -> bool:
    """Return True if a node reads a part of another value, which then is in memory."""
    while node.kind in (Kind.VIEW, Kind.STRIDED):
        base = graph.node(node.inputs[0])
        if node.size != base.size:
            return True
        node = base
    return node.kind is Kind.WINDOW


def _is_shuffle(graph: Graph, name: str) -> bool:
    """Return True for a choice between permuted views of channels-last images: its kernel stores
    this order, and another one transposes an output."""
    node = graph.node(name)
    windows = [graph.node(a) for a in node.inputs if graph.node(a).kind is Kind.WINDOW]
    views = [graph.node(window.inputs[0]) for window in windows]
    moved = any(list(v.strides) != sorted(v.strides, reverse=True) for v in views)
    return node.op == "where" and moved and all(_is_computed_last(graph, v) for v in views)


def _is_computed_last(graph: Graph, node: Node) -> bool:
    """Return True if elementwise operations and views compute a value from a convolution's
    channels-last result."""
    while node.kind in (*INSIDE_KERNELS, Kind.WINDOW) and node.inputs:
        node = max((graph.node(name) for name in node.inputs), key=lambda n: n.size)
    return node.order == CHANNELS_LAST


def _is_row(reduction: Node, read: Node, order: Order) -> bool:
    """Return True if a reduction runs over the innermost dimensions of its argument in an order,
    and its rows are short enough."""
    dims = order or tuple(range(len(read.shape)))
    inner = dims[len(dims) - len(reduction.dims) :]
    length = math.prod(read.shape[d] for d in reduction.dims)
    return set(inner) == set(reduction.dims) and length <= LONGEST_ROW
