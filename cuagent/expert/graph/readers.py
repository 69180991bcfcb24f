"""Choose the order in memory of computed values by the calls of the library that read them.

A kernel reads operands in any order through shared memory, but a linear layer of torch copies an
argument whose features are not adjacent, and a convolution one whose channels are not, and both
copies are slow. Elementwise values otherwise take the order of their arguments (`layouts`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from cuagent.expert.graph.graph import Graph, Kind, Node, contiguous_strides, reshaped
from cuagent.expert.graph.layouts import OWN
from cuagent.expert.graph.orders import CHANNELS_LAST, Order, inverse, order_of, permuted

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
        _want(graph, graph.node(name), order, found)
    for node in reversed(graph.nodes):
        for name, needed in _needs(node):
            read |= _want(graph, graph.node(name), needed, found)
        (order, *others) = found.get(node.name, {None})
        if node.kind is not Kind.POINTWISE or order is None or others:
            continue
        wanted[node.name] = order
        for name in _whole(graph, node):
            if node.name in read:
                read |= _want(graph, graph.node(name), order, found)
            elif len(users[name]) == 1:
                _want(graph, graph.node(name), order, found)
    return _possible(graph, wanted)


def _needs(node: Node) -> Iterator[tuple[str, Order | None]]:
    """Yield the arguments that a node would copy in another order, or read more slowly, and the
    order; None for arguments whose order the result follows, or that should keep their own."""
    if node.kind in INSIDE_KERNELS:
        return
    calls = (f"{start}F.conv2d(" for start in ("", OWN))
    if node.kind is Kind.LIBRARY and node.op.startswith("F.linear("):
        yield str(node.args[0]), ()
    elif node.op.startswith(tuple(calls)) and node.order == CHANNELS_LAST:
        yield str(node.args[0]), CHANNELS_LAST
    else:
        yield from ((name, None) for name in node.inputs)


def _whole(graph: Graph, node: Node) -> list[str]:
    return [a for a in node.inputs if graph.node(a).shape == node.shape]


def _want(
    graph: Graph, node: Node, order: Order | None, found: dict[str, set[Order | None]]
) -> set[str]:
    """Add the order of `node` that a reader needs, to the value whose memory the node views, and
    return this value's name; None is any order."""
    owner = (graph.owner(node.name), None)
    pairs = [owner] if order is None else _owners(graph, node, order)
    for name, needed in pairs:
        found.setdefault(name, set()).add(needed)
    return {name for name, _ in pairs}


def _owners(graph: Graph, node: Node, order: Order) -> list[tuple[str, Order]]:
    """Return the value that `node` views, and its order if the node's order is `order`; nothing if
    it has no such order."""
    strides: Sequence[int] | None = permuted(
        contiguous_strides(permuted(node.shape, order)), inverse(order)
    )
    while node.kind in (Kind.VIEW, Kind.STRIDED):
        base = graph.node(node.inputs[0])
        if node.kind is Kind.VIEW:
            strides = reshaped(node.shape, tuple(strides), base.shape)
        else:
            strides = _before_permutation(node, base, strides)
        if strides is None:
            return []
        node = base
    found = order_of(node.shape, strides)
    return [] if found is None else [(node.name, found)]


def _before_permutation(node: Node, base: Node, strides: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides of `base` if its permuted view `node` has `strides`; None if the node is
    no permuted view of the whole value."""
    if node.size != base.size or node.offset:
        return None
    sides = {(s, n): to for s, n, to in zip(node.strides, node.shape, strides, strict=True)}
    steps = zip(contiguous_strides(base.shape), base.shape, strict=True)
    found = [0 if n == 1 else sides.get((s, n)) for s, n in steps]
    return None if None in found else tuple(s for s in found if s is not None)


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
        if inside and [(owner.name, wanted.get(owner.name))] != _owners(graph, read, order):
            return False
    return True


def _is_row(reduction: Node, read: Node, order: Order) -> bool:
    """Return True if a reduction runs over the innermost dimensions of its argument in an order,
    and its rows are short enough."""
    dims = order or tuple(range(len(read.shape)))
    inner = dims[len(dims) - len(reduction.dims) :]
    length = math.prod(read.shape[d] for d in reduction.dims)
    return set(inner) == set(reduction.dims) and length <= LONGEST_ROW
