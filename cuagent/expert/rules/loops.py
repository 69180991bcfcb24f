"""Lower a loop over time (see `expert/loops`) to one node for each of its results."""

from __future__ import annotations

from typing import Any

from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.graph.lowering import Lowering, dtype_of, operand, rule, shape_of
from cuagent.expert.loops.spec import PRODUCT, RESULT, weights_of
from cuagent.expert.rules.recurrences import UNITS, float32, prepared


@rule("time_loop")
def time_loop(low: Lowering, fx: Any) -> str | None:
    leaves = [str(operand(low, leaf)) for leaf in fx.args[0]]
    loop = fx.kwargs["loop"]
    for leaf, transposed in sorted(weights_of(loop)):
        leaves[leaf] = _panels(low, leaves[leaf], transposed)
    first, names = "", []
    for k, value in enumerate(fx.meta["val"]):
        name = low.unique_name("" if k == 0 else f"result_{k}")
        first = first or name
        shape, dtype = tuple(int(n) for n in value.shape), str(value.dtype).removeprefix("torch.")
        op, args, spec = ("loop", tuple(leaves), loop) if k == 0 else (RESULT, (first,), k)
        node = Node(name, Kind.LOOP, op, args, shape, dtype, origin=low.origin, spec=spec)
        names.append(low.add(node))
    low.multiple[fx.name] = tuple(names)
    return first


@rule("state_product")
def state_product(low: Lowering, fx: Any) -> str | None:
    """Lower a matrix product in a loop's body to a node; its `spec` is True if the matrix is
    transposed."""
    args = tuple(str(operand(low, a)) for a in fx.args)
    node = Node(
        low.unique_name(""), Kind.LOOP, PRODUCT, args, shape_of(fx), dtype_of(fx),
        origin=low.origin, spec=fx.kwargs["transposed"],
    )  # fmt: skip
    return low.add(node)


def _panels(low: Lowering, weight: str, transposed: bool) -> str:
    """Add a weight matrix in float32, reordered to (panels, depth, units) and padded with zeros;
    return the node's name."""
    name = float32(low, weight)
    depth, columns = low.shape(name)[::-1] if transposed else low.shape(name)
    panels = -(-columns // UNITS)
    rows = "{0}" if transposed else "{0}.t()"
    call = (
        f"F.pad({rows}, (0, 0, 0, {panels * UNITS - columns}))"
        f".view({panels}, {UNITS}, {depth}).transpose(1, 2)"
    )
    return prepared(low, call, name, (panels, depth, UNITS), "panels")
