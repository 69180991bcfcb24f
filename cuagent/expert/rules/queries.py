"""Compute the queries of the library's attention in the memory order that they have in the
reference.

The library's result takes the order of the queries. Forward then mostly joins its heads, which
copies the result if the heads are not inside. Elementwise operations keep the order of a transposed
argument in torch, so that the reference needs no copy there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cuagent.expert.graph.graph import Kind, Operand
from cuagent.expert.graph.lowering import Lowering, rule
from cuagent.expert.graph.orders import Order, inverse, order_of_value, permuted
from cuagent.expert.rules.library import library
from cuagent.expert.rules.views import permuted_view, viewed

READ = (
    Kind.INPUT, Kind.PARAMETER, Kind.CONSTANT, Kind.LIBRARY, Kind.VIEW, Kind.STRIDED, Kind.REDUCE,
    Kind.POINTWISE, Kind.INSIDE, Kind.INDEX, Kind.WINDOW,
)  # fmt: skip
"""Kinds of nodes of which a permuted view can be read."""


@rule("scaled_dot_product_attention")
def scaled_dot_product_attention(low: Lowering, fx: Any) -> str | None:
    """Lower to the same call with queries in the traced order; None if they have it already."""
    query = fx.args[0]
    ordered = in_traced_order(low, query)
    if ordered is None:
        return None
    name, low.values[query.name] = low.values[query.name], ordered
    call = library(low, fx)
    low.values[query.name] = name
    return call


HEADS_INSIDE: Order = (0, 2, 1, 3)
"""Order (batch, rows, heads, head size) of queries (batch, heads, rows, head size)."""


def with_heads_inside(low: Lowering, fx: Any) -> str | None:
    """Return a view of queries that are computed in an order in which an attention whose heads
    are joined returns them without a copy; None as for `in_traced_order`."""
    several = all(n > 1 for n in low.shape(str(low.values.get(fx.name)))[1:3])
    return in_traced_order(low, fx, HEADS_INSIDE if several else ())


def in_traced_order(low: Lowering, fx: Any, otherwise: Order = ()) -> str | None:
    """Return a view of elementwise values that are computed again in their traced memory order, or
    in the order `otherwise` if they are contiguous in the trace.

    None if they need not be computed again: no node but their reader may use them, so that they are
    computed once.
    """
    order = order_of_value(fx.meta.get("val")) or otherwise
    name = low.values.get(fx.name)
    readers = [user for user in fx.users if _is_live(user)]
    if low.layouts or not order or not isinstance(name, str) or len(readers) != 1:
        return None
    if low.by_name[name].kind is not Kind.POINTWISE:
        return None
    chain = _chain(low, name)
    if any(low.by_name[a].kind not in READ for k in chain for a in low.by_name[k].inputs):
        return None
    own, low.origin = low.origin, low.by_name[name].origin
    moved: dict[str, str] = {}
    for node in [n for n in low.nodes if n.name in chain]:
        args = tuple(_moved(low, arg, order, len(order), moved) for arg in node.args)
        moved[node.name] = low.add(
            replace(
                node,
                name=low.unique_name(f"{node.op}_ordered"),
                args=args,
                shape=permuted(node.shape, order),
            )
        )
    result = permuted_view(low, moved[name], inverse(order), "moved")
    low.origin = own
    return result


def _is_live(fx: Any) -> bool:
    """Return True if an output depends on a captured value; operators that a rewrite replaced stay
    among the users of their arguments."""
    stack, seen = [fx], {fx}
    while stack:
        node = stack.pop()
        if node.op == "output":
            return True
        new = [user for user in node.users if user not in seen]
        stack += new
        seen.update(new)
    return False


def _chain(low: Lowering, last: str) -> set[str]:
    """Return the elementwise nodes of the full rank that only `last` uses, itself included."""
    users: dict[str, set[str]] = {}
    for node in low.nodes:
        for arg in node.inputs:
            users.setdefault(arg, set()).add(node.name)
    rank, chain, wanted = len(low.shape(last)), {last}, set(low.by_name[last].inputs)
    for node in reversed(low.nodes):
        whole = node.kind is Kind.POINTWISE and len(node.shape) == rank
        if node.name in wanted and whole and users[node.name] <= chain:
            chain.add(node.name)
            wanted |= set(node.inputs)
    return chain


def _moved(low: Lowering, arg: Operand, order: Order, rank: int, moved: dict[str, str]) -> Operand:
    """Return an operand with its dimensions, raised to `rank`, in the given order."""
    if not isinstance(arg, str) or not low.shape(arg):
        return arg
    if arg in moved:
        return moved[arg]
    node, missing = low.by_name[arg], rank - len(low.shape(arg))
    wide = (1,) * missing + node.shape
    shape = permuted(wide, order)
    if node.kind in (Kind.INSIDE, Kind.INDEX, Kind.WINDOW):
        args = tuple(_moved(low, a, order, rank, {}) for a in node.args)
        dims = tuple(order.index(d + missing) for d in node.dims)
        name = low.unique_name("moved")
        return low.add(replace(node, name=name, args=args, shape=shape, dims=dims))
    if _only_moves_ones(wide, order):
        return viewed(low, arg, shape, "moved") or arg
    raised = viewed(low, arg, wide, "moved") if missing else arg
    assert raised is not None
    return permuted_view(low, raised, order, "moved")


def _only_moves_ones(shape: Sequence[int], order: Order) -> bool:
    """Return True if the dimensions of more than one element keep their sequence."""
    kept = [d for d in order if shape[d] > 1]
    return kept == sorted(kept)
