"""Lower a loop over time to one node for each of its results."""

from __future__ import annotations

from typing import Any

from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.graph.lowering import Lowering, operand, rule
from cuagent.expert.loops.spec import RESULT


@rule("time_loop")
def time_loop(low: Lowering, fx: Any) -> str | None:
    leaves = tuple(str(operand(low, leaf)) for leaf in fx.args[0])
    first, names = "", []
    for k, value in enumerate(fx.meta["val"]):
        name = low.unique_name("" if k == 0 else f"result_{k}")
        first = first or name
        shape, dtype = tuple(int(n) for n in value.shape), str(value.dtype).removeprefix("torch.")
        op, args, spec = ("loop", leaves, fx.kwargs["loop"]) if k == 0 else (RESULT, (first,), k)
        node = Node(name, Kind.LOOP, op, args, shape, dtype, origin=low.origin, spec=spec)
        names.append(low.add(node))
    low.multiple[fx.name] = tuple(names)
    return first
