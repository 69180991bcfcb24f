"""Lower recurrent cells (GRU, LSTM) and whole recurrences: one product for the inputs of all steps,
and one kernel for the steps.

On a CPU the weights of the state are stored in float32, in panels of 16 units each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cuagent.expert.edits import PREPARATIONS
from cuagent.expert.graph.graph import FLOATS, Kind, Node
from cuagent.expert.graph.lowering import (
    Lowering,
    dtype_of,
    operand,
    operator_name,
    rule,
    shape_of,
    value_of,
)
from cuagent.expert.recurrences.cells import GATES, LayerCall, Recurrence
from cuagent.expert.rules.library import library
from cuagent.expert.rules.views import narrowed

UNITS = 16
"""Number of hidden units whose weights are stored together in one panel."""


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


@rule(*GATES)
def layer(low: Lowering, fx: Any) -> str | None:
    """Leave a recurrent layer to torch, and note how many kernels torch launches for it at
    least."""
    x, layers, batch_first = fx.args[0], fx.args[4], fx.args[-1]
    if not isinstance(batch_first, bool) or len(shape_of(x)) != 3:
        return None
    steps = shape_of(x)[1 if batch_first else 0]
    name = library(low, fx)
    node = replace(low.by_name[name], spec=LayerCall(steps * layers * (2 if fx.args[7] else 1)))
    low.nodes[-1] = low.by_name[name] = node
    return name


def float32(low: Lowering, name: Any) -> str:
    if low.by_name[name].dtype == "float32":
        return str(name)
    return low.pointwise("cast", name, hint="wide", dtype="float32")


def _projected(
    low: Lowering, x: str, weight: str, spec: Recurrence, bias: Any, shape: tuple[int, ...]
) -> str:
    """Add the product of all steps' inputs with the input weights; return its name. The steps keep
    their order in memory."""
    args, call = (x, weight), "F.linear({0}, {1})"
    if bias is not None:
        args = (x, weight, float32(low, operand(low, bias)))  # type: ignore[assignment]
        call = "F.linear({0}, {1}, bias={2})"
    wide = (*shape[:2], spec.gates * spec.hidden)
    name = low.unique_name("inputs")
    return low.add(Node(name, Kind.LIBRARY, call, args, wide, origin=low.origin))


def _panels(low: Lowering, weight: str, spec: Recurrence) -> str:
    """Add the state weights, reordered to (panels, gates, hidden, units) and padded with zeros;
    return the node's name."""
    gates, hidden = spec.gates, spec.hidden
    panels = -(-hidden // UNITS)
    call = (
        f"F.pad({{0}}.view({gates}, {hidden}, {hidden}), (0, 0, 0, {panels * UNITS - hidden}))"
        f".view({gates}, {panels}, {UNITS}, {hidden}).permute(1, 0, 3, 2)"
    )
    return prepared(low, call, weight, (panels, gates, hidden, UNITS), "panels")


def _padded(low: Lowering, bias: str, spec: Recurrence) -> str:
    """Add the bias, reordered to (panels, gates, units) and padded with zeros; return the node's
    name."""
    gates, hidden = spec.gates, spec.hidden
    panels = -(-hidden // UNITS)
    call = (
        f"F.pad({{0}}.view({gates}, {hidden}), (0, {panels * UNITS - hidden}))"
        f".view({gates}, {panels}, {UNITS}).transpose(0, 1)"
    )
    return prepared(low, call, bias, (panels, gates, UNITS), "bias")


def prepared(low: Lowering, call: str, arg: str, shape: tuple[int, ...], hint: str) -> str:
    PREPARATIONS.add(call)
    return low.add(
        Node(
            low.unique_name(hint), Kind.LIBRARY, call, (arg,), shape, origin=low.origin,
            contiguous=False,
        )
    )  # fmt: skip


@rule("gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(low: Lowering, fx: Any) -> str | None:
    """Lower one step of a recurrent cell on a CPU to two products, and one kernel for all gates.

    torch computes each gate by separate operators: a GRU cell of 8 rows and 128 units took 51 us.
    """
    x, given, *parameters = fx.args
    states = [operand(low, s) for s in (given if isinstance(given, list | tuple) else [given])]
    values = [operand(low, a) for a in (x, *parameters) if a is not None]
    known = all(isinstance(v, str) and low.by_name[v].dtype in FLOATS for v in (*states, *values))
    if not known or value_of(fx).device.type != "cpu" or len(shape_of(x)) != 2:
        return None
    biases = [operand(low, a) for a in parameters[2:]] or [None, None]
    products = [
        (_product(low, values[0], values[1], "inputs"), biases[0]),
        (_product(low, states[0], values[2], "state"), biases[1]),
    ]
    units = low.shape(str(states[0]))[1]
    pairs = [
        tuple(_part(low, whole, bias, k, units) for whole, bias in products)
        for k in range(low.shape(products[0][0])[1] // units)
    ]
    name = operator_name(fx)
    if name == "gru_cell":
        return _gru(low, pairs, str(states[0]))
    sums = [low.pointwise("add", *pair, hint="sum") for pair in pairs]
    if name == "lstm_cell":
        low.multiple[fx.name] = found = _lstm(low, sums, str(states[1]), dtype_of(fx))
        return found[0]
    return low.pointwise("tanh" if "tanh" in name else "relu", sums[0], hint="")


def _gru(low: Lowering, pairs: list[tuple[str, ...]], state: str) -> str:
    reset = low.pointwise("sigmoid", low.pointwise("add", *pairs[0], hint="sum"), hint="reset")
    update = low.pointwise("sigmoid", low.pointwise("add", *pairs[1], hint="sum"), hint="update")
    kept = low.pointwise("mul", reset, pairs[2][1], hint="kept")
    new = low.pointwise("tanh", low.pointwise("add", pairs[2][0], kept, hint="sum"), hint="new")
    change = low.pointwise("mul", update, low.pointwise("sub", state, new, hint="gap"), hint="part")
    return low.pointwise("add", new, change, hint="")


def _lstm(low: Lowering, sums: list[str], old: str, dtype: str) -> tuple[str, str]:
    """Return the nodes of an LSTM's new state h and new cell state c."""
    into, forget, out = (low.pointwise("sigmoid", sums[k], hint="gate") for k in (0, 1, 3))
    new = low.pointwise("mul", into, low.pointwise("tanh", sums[2], hint="new"), hint="added")
    kept = low.pointwise("mul", forget, old, hint="kept")
    last = low.pointwise("add", kept, new, hint="cell", dtype=dtype)
    return low.pointwise("mul", out, low.pointwise("tanh", last), hint="", dtype=dtype), last


def _product(low: Lowering, x: Any, weight: Any, hint: str) -> str:
    shape, dtype = (low.shape(x)[0], low.shape(weight)[0]), low.by_name[x].dtype
    name, call = low.unique_name(hint), "F.linear({0}, {1})"
    return low.add(Node(name, Kind.LIBRARY, call, (x, weight), shape, dtype, origin=low.origin))


def _part(low: Lowering, whole: str, bias: Any, gate: int, units: int) -> str:
    """Return the node with the columns of one gate in the product `whole`, with their bias
    added."""
    start, end = gate * units, (gate + 1) * units
    part = narrowed(low, whole, 1, start, end)
    if bias is None:
        return part
    return low.pointwise("add", part, narrowed(low, bias, 0, start, end), hint="part")
