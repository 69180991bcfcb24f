"""Lower all steps of a cell: the inputs of all steps as one product, and the steps in one kernel.

On a CPU the weights of the state are stored in panels of 16 units (`cpp`), and computed in float32.
"""

from __future__ import annotations

from typing import Any

from cuagent.expert.graph.graph import Kind, Node
from cuagent.expert.graph.lowering import Lowering, dtype_of, operand, rule, shape_of
from cuagent.expert.recurrences.cells import Recurrence

UNITS = 16
"""Units in one panel of weights."""


@rule("recurrence")
def recurrence(low: Lowering, fx: Any) -> str | None:
    x, states, weight_ih, weight_hh, bias_ih, bias_hh = fx.args
    cell, value = fx.kwargs["cell"], fx.meta["val"][0]
    steps, rows, hidden = (int(n) for n in value.shape)
    spec = Recurrence(
        cell, steps, rows, hidden, **{k: v for k, v in fx.kwargs.items() if k != "cell"}
    )
    names = [float32(low, operand(low, a)) for a in (x, weight_ih, weight_hh)]
    inputs = _projected(low, names[0], names[1], spec, bias_ih, shape_of(x))
    on_cuda = spec.processors > 0
    args = [inputs, names[2] if on_cuda else _panels(low, names[2], spec)]
    if bias_hh is not None:
        bias = float32(low, operand(low, bias_hh))
        args.append(bias if on_cuda else _padded(low, bias, spec))
    args += [str(operand(low, state)) for state in states]
    dtype = dtype_of(fx)
    name = low.add(
        Node(
            low.unique_name(""), Kind.RECURRENCE, cell, tuple(args), (steps, rows, hidden), dtype,
            origin=low.origin, spec=spec,
        )
    )  # fmt: skip
    results = [name]
    if cell == "lstm":
        # The last c is a second result of the same kernel.
        results.append(
            low.add(
                Node(
                    low.unique_name("cell"), Kind.RECURRENCE, "last", (name,), (rows, hidden),
                    dtype, origin=low.origin, spec=spec,
                )
            )
        )  # fmt: skip
    low.multiple[fx.name] = tuple(results)
    return name


def float32(low: Lowering, name: Any) -> str:
    if low.by_name[name].dtype == "float32":
        return str(name)
    return low.pointwise("cast", name, hint="wide", dtype="float32")


def _projected(
    low: Lowering, x: str, weight: str, spec: Recurrence, bias: Any, shape: tuple[int, ...]
) -> str:
    """Add the product of all steps' inputs with the weights, in the inputs' order in memory."""
    args, call = (x, weight), "F.linear({0}, {1})"
    if bias is not None:
        args = (x, weight, float32(low, operand(low, bias)))  # type: ignore[assignment]
        call = "F.linear({0}, {1}, bias={2})"
    wide = (*shape[:2], spec.gates * spec.hidden)
    name = low.unique_name("inputs")
    return low.add(Node(name, Kind.LIBRARY, call, args, wide, origin=low.origin))


def _panels(low: Lowering, weight: str, spec: Recurrence) -> str:
    """Add the weights, reordered to (panels, gates, hidden, units); units past the end are 0."""
    gates, hidden = spec.gates, spec.hidden
    panels = -(-hidden // UNITS)
    call = (
        f"F.pad({{0}}.view({gates}, {hidden}, {hidden}), (0, 0, 0, {panels * UNITS - hidden}))"
        f".view({gates}, {panels}, {UNITS}, {hidden}).permute(1, 0, 3, 2)"
    )
    return prepared(low, call, weight, (panels, gates, hidden, UNITS), "panels")


def _padded(low: Lowering, bias: str, spec: Recurrence) -> str:
    """Add the bias, reordered to (panels, gates, units); units past the end are 0."""
    gates, hidden = spec.gates, spec.hidden
    panels = -(-hidden // UNITS)
    call = (
        f"F.pad({{0}}.view({gates}, {hidden}), (0, {panels * UNITS - hidden}))"
        f".view({gates}, {panels}, {UNITS}).transpose(0, 1)"
    )
    return prepared(low, call, bias, (panels, gates, UNITS), "bias")


def prepared(low: Lowering, call: str, arg: str, shape: tuple[int, ...], hint: str) -> str:
    from cuagent.expert.rewrites import PREPARATIONS  # it imports this package

    PREPARATIONS.add(call)
    return low.add(
        Node(
            low.unique_name(hint), Kind.LIBRARY, call, (arg,), shape, origin=low.origin,
            contiguous=False,
        )
    )  # fmt: skip
