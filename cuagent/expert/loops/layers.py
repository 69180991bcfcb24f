"""Replace loops with the equations of a torch cell (RNN, GRU, LSTM) by torch's layer, on CUDA.

The arguments of the gates are read as sums: one product of the inputs, one of the state, biases. A
test of the update with random numbers in float64 finds which gate is which. The result is equal in
exact arithmetic. Not covered: gates whose inputs come from different tensors, several dimensions of
rows.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cuagent.expert.capture.editing import Edit, called, is_item
from cuagent.expert.graph.lowering import argument, shape_of
from cuagent.expert.loops.body import Body
from cuagent.expert.loops.roll import Rolled
from cuagent.expert.loops.slices import NoLoop

ACTIVATIONS = ("sigmoid", "tanh", "relu")
LEAST_CALLS = 4
"""Least number of calls of a layer that are treated as a loop."""


@dataclass
class Gate:
    """One activation of a cell; its argument is a sum of products and biases.

    A term is (node, first column): the gate reads columns of the node's value from there on.
    """

    node: Any
    """The activation's node."""
    inputs: list[tuple[Any, int]] = field(default_factory=list)
    states: list[tuple[Any, int]] = field(default_factory=list)
    biases: list[tuple[Any, int]] = field(default_factory=list)
    reset: Gate | None = None
    """In a GRU: the terms of the argument that another gate's activation multiplies.

    `node` of this `Gate` is that activation.
    """

    @property
    def is_plain(self) -> bool:
        return len(self.inputs) == 1 and len(self.states) == 1 and self.reset is None


@dataclass(frozen=True)
class Cell:
    """A torch cell that a loop computes: its gates in torch's order, and its states.

    `states` are the positions of the operators that compute them.
    """

    name: str
    gates: tuple[Gate, ...]
    negated: frozenset[int]
    """Indices of gates whose argument has the opposite sign in torch's cell."""
    states: tuple[int, ...]


def split_joined_inputs(edit: Edit) -> None:
    """Replace linear(cat(x, h)) by a sum of linear layers of x and h.

    A layer is split if it is called several times, as in a loop. The result is equal in exact
    arithmetic.
    """
    import torch

    aten = torch.ops.aten
    calls: dict[Any, list[Any]] = {}
    for node in edit.nodes:
        if called(node) == "linear" and called(node.args[0]) == "cat" and _joins_columns(node):
            calls.setdefault(node.args[1], []).append(node)
    for weight, nodes in calls.items():
        widths = {tuple(shape_of(part)[-1] for part in node.args[0].args[0]) for node in nodes}
        if len(nodes) < LEAST_CALLS or len(widths) != 1:
            continue
        (columns,) = widths
        # A node between the operators of the first step would hide that step from the loop.
        edit.graph.inserting_before(next(n for n in edit.nodes if n.op == "call_function"))
        ends = list(itertools.accumulate(columns, initial=0))
        parts = [
            edit.call(aten.slice.Tensor, (weight, 1, a, b)) for a, b in itertools.pairwise(ends)
        ]
        for node in nodes:
            edit.graph.inserting_before(node)
            first, *rest = node.args[0].args[0]
            value = edit.call(aten.linear.default, (first, parts[0], *node.args[2:]))
            for tensor, part in zip(rest, parts[1:], strict=True):
                term = edit.call(aten.linear.default, (tensor, part))
                value = edit.call(aten.add.Tensor, (value, term))
            edit.replace(node, value)
            joined = node.args[0]
            edit.graph.erase_node(node)
            if not joined.users:
                edit.graph.erase_node(joined)


def _joins_columns(node: Any) -> bool:
    joined = node.args[0]
    rank = len(shape_of(joined))
    return rank == 2 and argument(joined, 1, "dim", 0) % rank == 1 and len(joined.args[0]) == 2


def replaced_by_layer(edit: Edit, loop: Rolled) -> bool:
    """Replace a loop by a call of torch's recurrent layer; return False if none has its
    equations.
    """
    try:
        edit.graph.inserting_before(loop.steps[0][0])
        body = Body(loop, edit)
        cell = _cell(body)
        if cell is None:
            return False
        return _replaced(edit, loop, body, cell)
    except (NoLoop, RuntimeError, TypeError, ValueError, IndexError):
        return False


def _cell(body: Body) -> Cell | None:
    done: dict[int, Any] = {}
    while len(done) < len(body.states) or not done:
        for position in list(body.states) or list(body.loop.initial):
            done[position] = body.value(position)
    products = [n for n in body.graph.nodes if called(n) == "state_product"]
    hidden = {n.args[0] for n in products}
    positions = [p for p, node in body.states.items() if node in hidden]
    if len(hidden) != 1 or len(positions) != 1 or len(done) > 2:
        return None
    own = positions[0]
    width = shape_of(body.states[own])[-1]
    gates = []
    for node in body.graph.nodes:
        if called(node) in ACTIVATIONS:
            gate = Gate(node)
            if _collect(body, node.args[0], 0, gate) and (gate.states or gate.reset):
                gates.append(gate)
    if any(shape_of(g.node) != shape_of(body.states[own]) or width < 2 for g in gates):
        return None
    return _named(body, gates, own, done)


def _collect(body: Body, node: Any, offset: int, gate: Gate) -> bool:
    """Add the terms of the sum `node`, from column `offset` on, to `gate`.

    Returns False if the expression contains terms other than products and biases.
    """
    name = called(node)
    if name == "add" and len(node.args) == 2 and not node.kwargs:
        return all(hasattr(a, "meta") and _collect(body, a, offset, gate) for a in node.args)
    if is_item(node) and called(node.args[0]) in ("chunk", "split", "split_with_sizes"):
        source, k = node.args
        position = 2
        last = argument(source, position, "dim", 0) % len(shape_of(source.args[0]))
        if last != len(shape_of(node)) - 1:
            return False
        before = sum(int(part.shape[-1]) for part in source.meta["val"][:k])
        return _collect(body, source.args[0], offset + before, gate)
    if name == "slice":
        dim = argument(node, 1, "dim", 0) % len(shape_of(node))
        whole = argument(node, 4, "step", 1) == 1 and dim == len(shape_of(node)) - 1
        start = argument(node, 2, "start") or 0
        return whole and start >= 0 and _collect(body, node.args[0], offset + start, gate)
    if name == "state_product":
        gate.states.append((node, offset))
        return True
    if name == "mul" and gate.reset is None:
        for factor, rest in (node.args, node.args[::-1]):
            if hasattr(rest, "meta") and called(factor) == "sigmoid":
                inner = Gate(factor)
                if _collect(body, rest, offset, inner) and len(inner.states) == 1:
                    gate.reset = inner
                    return not inner.inputs
        return False
    for placeholder, slot in body.slots:
        if placeholder is node and not slot.state:
            assert slot.leaf is not None
            leaf = body.leaves[slot.leaf]
            (gate.biases if slot.dim is None else gate.inputs).append((leaf, offset))
            return slot.dim is not None or len(shape_of(leaf)) == 1
    return False


def _named(body: Body, gates: list[Gate], own: int, updates: dict[int, Any]) -> Cell | None:
    """Return the torch cell whose equations give `updates` from the gates; None if there is none.

    `own` is the position of the hidden state.
    """
    other = next((p for p in updates if p != own), None)
    plain = all(g.is_plain for g in gates)
    kinds = [called(g.node) for g in gates]
    sigmoids = [g for g in gates if called(g.node) == "sigmoid"]
    h, results, values = _evaluated(body, gates, updates)
    if len(gates) == 1 and plain and other is None and kinds[0] in ("tanh", "relu"):
        if _equal(results[own], values[gates[0].node]):
            return Cell(f"rnn_{kinds[0]}", tuple(gates), frozenset(), (own,))
        return None
    if other is not None and plain and sorted(kinds) == ["sigmoid"] * 3 + ["tanh"]:
        (fresh,) = (g for g in gates if g not in sigmoids)
        for i, f, o in itertools.permutations(sigmoids):
            c = values[f.node] * h[other] + values[i.node] * values[fresh.node]
            if _equal(results[other], c) and _equal(results[own], values[o.node] * c.tanh()):
                return Cell("lstm", (i, f, fresh, o), frozenset(), (own, other))
        return None
    if other is None and sorted(kinds) == ["sigmoid", "sigmoid", "tanh"]:
        return _gru(gates, own, h[own], results[own], values)
    return None


def _gru(gates: list[Gate], own: int, h: Any, result: Any, values: Any) -> Cell | None:
    (fresh,) = (g for g in gates if called(g.node) == "tanh")
    if fresh.reset is None or fresh.states or len(fresh.inputs) != 1:
        return None
    for reset, keep in itertools.permutations([g for g in gates if g is not fresh]):
        if fresh.reset.node is not reset.node or not (reset.is_plain and keep.is_plain):
            continue
        n, z = values[fresh.node], values[keep.node]
        for negated, weight in ((False, z), (True, 1 - z)):
            if _equal(result, n + weight * (h - n)):
                signs = frozenset([1] if negated else [])
                return Cell("gru", (reset, keep, fresh), signs, (own,))
    return None


def _equal(a: Any, b: Any) -> bool:
    import torch

    return bool(torch.allclose(a, b, rtol=1e-9, atol=1e-12))


def _evaluated(body: Body, gates: Sequence[Gate], updates: dict[int, Any]) -> tuple[Any, Any, Any]:
    """Evaluate the body in float64, with random placeholders and random results of activations.

    Return (states by position, their updates by position, values of all nodes).
    """
    import torch

    chosen = torch.Generator().manual_seed(0)
    own = {gate.node for gate in gates}
    values: dict[Any, Any] = {}
    for node in body.graph.nodes:
        example = node.meta["val"]
        if node.op == "placeholder" or node in own:
            values[node] = torch.rand(example.shape, generator=chosen, dtype=torch.float64)
        else:
            args, options = torch.fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            if "dtype" in options:
                options = {**options, "dtype": torch.float64}
            values[node] = node.target(*args, **options)
    states = {p: values[node] for p, node in body.states.items()}
    return states, {p: values[node] for p, node in updates.items()}, values


def _replaced(edit: Edit, loop: Rolled, body: Body, cell: Cell) -> bool:
    """Add the layer's call and replace the states of all steps by its results.

    Returns False if the loop's inputs have another form than the layer needs.
    """
    import torch

    aten, hidden = torch.ops.aten, shape_of(body.states[cell.states[0]])[-1]
    initial = [loop.initial[p] for p in cell.states]
    if not all(hasattr(i, "meta") and len(shape_of(i)) == 2 for i in initial):
        return False
    sources = {_source(g) for g in cell.gates}
    if len(sources) != 1 or None in sources:
        return False
    (x,) = sources
    dims = {slot.dim for _, slot in body.slots if slot.dim is not None}
    if len(shape_of(x)) != 3 or len(dims) != 1 or not dims <= {0, 1}:
        return False
    (dim,) = dims
    parts = [_weights(edit, body, g, hidden, k in cell.negated) for k, g in enumerate(cell.gates)]
    columns = list(zip(*parts, strict=True))
    weights = [edit.call(aten.cat.default, (list(column),)) for column in columns]
    first = [edit.call(aten.unsqueeze.default, (state, 0)) for state in initial]
    layer = getattr(aten, cell.name).input
    flags = (True, 1, 0.0, False, False, dim == 1)
    call = edit.call(layer, (x, first if cell.name == "lstm" else first[0], weights, *flags))
    outputs = edit.call(operator.getitem, (call, 0))
    if dim == 1:
        outputs = edit.call(aten.transpose.int, (outputs, 0, 1))
    own = [step[cell.states[0]] for step in loop.steps]
    _join_products(edit, own, outputs)
    _replace_stacks(edit, own, outputs)
    for k, node in enumerate(own):
        edit.replace(node, edit.call(aten.select.int, (outputs, 0, k)))
    if cell.name == "lstm":
        last = edit.call(operator.getitem, (call, 2))
        edit.replace(loop.steps[-1][cell.states[1]], edit.call(aten.select.int, (last, 0, 0)))
    return True


def _join_products(edit: Edit, states: list[Any], outputs: Any) -> None:
    """Compute a linear layer that reads each step's state by one call for all steps."""
    import torch

    aten = torch.ops.aten
    for user in list(states[0].users):
        if called(user) != "linear" or user.args[0] is not states[0]:
            continue
        layers: list[Any] = [
            next(
                (u for u in s.users if u.target is user.target and u.args == (s, *user.args[1:])),
                None,
            )
            for s in states
        ]
        if None in layers:
            continue
        whole = edit.call(aten.linear.default, (outputs, *user.args[1:]))
        _replace_stacks(edit, layers, whole)
        for k, node in enumerate(layers):
            if node.users:
                edit.replace(node, edit.call(aten.select.int, (whole, 0, k)))


def _replace_stacks(edit: Edit, states: list[Any], outputs: Any) -> None:
    import torch

    aten = torch.ops.aten
    for user in list(states[0].users):
        if called(user) != "stack" or list(user.args[0]) not in (states, states[::-1]):
            continue
        value, dim = outputs, argument(user, 1, "dim", 0) % 3
        if list(user.args[0]) != states:
            value = edit.call(aten.flip.default, (value, [0]))
        if dim:
            value = edit.call(aten.movedim.int, (value, 0, dim))
        options = {"memory_format": torch.contiguous_format}
        edit.replace(user, edit.call(aten.clone.default, (value,), options))


def _product_of(gate: Gate) -> Any:
    """Return the product node in a gate's input term, without a bias that is added to it."""
    (node, _) = gate.inputs[0]
    while called(node) == "add":
        node = next((a for a in node.args if len(shape_of(a)) > 1), None)
    return node


def _source(gate: Gate) -> Any:
    node = _product_of(gate)
    return node.args[0] if called(node) in ("linear", "matmul") else None


def _weights(edit: Edit, body: Body, gate: Gate, hidden: int, negated: bool) -> tuple[Any, ...]:
    """Return the parameters of one gate: input weight, state weight, input bias, state bias.

    With `negated` all have the opposite sign.
    """
    import torch

    aten = torch.ops.aten
    inner = gate.reset or gate
    (node, start), (product, first) = gate.inputs[0], inner.states[0]

    def rows(weight: Any, offset: int, transposed: bool) -> Any:
        if not transposed:
            weight = edit.call(aten.t.default, (weight,))
        return edit.call(aten.slice.Tensor, (weight, 0, offset, offset + hidden))

    def total(terms: list[tuple[Any, int]]) -> Any:
        value = None
        for bias, offset in terms:
            part = edit.call(aten.slice.Tensor, (bias, 0, offset, offset + hidden))
            value = part if value is None else edit.call(aten.add.Tensor, (value, part))
        return (
            edit.call(aten.new_zeros.default, (input_weight, [hidden])) if value is None else value
        )

    source = _product_of(gate)
    input_weight = rows(source.args[1], start, called(source) == "linear")
    slot = next(s for n, s in body.slots if n is product.args[1])
    assert slot.leaf is not None
    state_weight = rows(body.leaves[slot.leaf], first, product.kwargs["transposed"])
    biases = list(gate.biases)
    if called(source) == "linear" and len(source.args) > 2 and source.args[2] is not None:
        biases.append((source.args[2], start))
    if called(node) == "add":
        biases += [(a, start) for a in node.args if len(shape_of(a)) == 1]
    found = [input_weight, state_weight, total(biases)]
    found.append(total(gate.reset.biases if gate.reset else []))
    if negated:
        found = [edit.call(aten.neg.default, (value,)) for value in found]
    return tuple(found)
