"""Replace loops over recurrent cells, and torch's recurrent layers, by calls for all their steps.

A loop qualifies if the cells of all steps have the same weights, each reads the state of the
previous one, and no other input of a step depends on the loop. On the CPU the call is a generated
kernel, also for `nn.LSTM`, `nn.GRU` and `nn.RNN`, up to a hidden size of 256; on a GPU it is
torch's layer, which `with_layers` replaces by a generated kernel where possible. The result is
equal in exact arithmetic. Not covered: loops that feed a result back through other operators,
projections of LSTM, dropout between layers in training, packed sequences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuagent.expert.capture.editing import Edit, called, calls_any, is_item
from cuagent.expert.capture.export import Captured
from cuagent.expert.capture.subject import Target
from cuagent.expert.graph.graph import FLOATS
from cuagent.expert.graph.lowering import argument, dtype_of, shape_of
from cuagent.expert.recurrences.cells import CELLS, GATES, recurrence
from cuagent.expert.recurrences.cuda_layout import has_kernel

LEAST_STEPS = 2
MOST_HIDDEN = 256
"""Largest hidden size for which a generated kernel is used on the CPU.

At 256 an LSTMCell loop took 0.86 times the processor time of torch's, at 512 an `nn.LSTM` 1.4 times
(AVX2, one thread, 16 and 32 rows).
"""


@dataclass(frozen=True)
class Loop:
    """A chain of calls of one recurrent cell, in order of the steps."""

    cell: str
    steps: tuple[Any, ...]

    @property
    def weights(self) -> tuple[Any, ...]:
        """Nodes (weight_ih, weight_hh, bias_ih, bias_hh); None for a missing bias."""
        return _weights(self.steps[0])


MADE = re.compile(r"(gru|lstm|rnn_\w+?)(_\d+)?_\d+(_reverse)?|\w+_loop")
"""Names of the calls that replace recurrent layers and loops over cells."""


def with_recurrences(
    captured: Captured, device: str, keep: frozenset[str] = frozenset()
) -> tuple[Captured, tuple[str, ...]]:
    """Return the graph with one call for each loop over cells, and the names of the replaced
    operators. Layers and loops remain if a call in their place would have a name in `keep`.
    """
    if not calls_any(captured, {*CELLS, *GATES}):
        return captured, ()
    edit = Edit(captured)
    found = []
    for loop in _loops(edit):
        if f"{loop.steps[0].name}_loop" in keep:
            continue
        if _replaced(edit, loop, device):
            found.append(f"{len(loop.steps)} calls of {loop.cell}_cell")
    if device == "cpu":
        for node in edit.nodes:
            if called(node) in GATES and not _is_kept(node, keep) and _layers(edit, node):
                found.append(str(node.name))
    return (edit.result(), tuple(found)) if found else (captured, ())


def with_layers(
    captured: Captured, target: Target, keep: frozenset[str] = frozenset()
) -> tuple[Captured, tuple[str, ...]]:
    """Return the graph with generated CUDA kernels in place of torch's recurrent layers.

    Also return the names of the replaced operators. `keep` is as in `with_recurrences`.
    """
    if not calls_any(captured, GATES):
        return captured, ()
    edit = Edit(captured)
    found = [
        str(node.name)
        for node in edit.nodes
        if called(node) in GATES
        and node.users
        and not _is_kept(node, keep)
        and _fits(node, target)
        and _layers(edit, node, target)
    ]
    return (edit.result(), tuple(found)) if found else (captured, ())


def _is_kept(node: Any, keep: frozenset[str]) -> bool:
    """Return True if the call for one of the node's layers and directions has a name in `keep`."""
    made = re.compile(rf"{re.escape(node.name)}_\d+(_reverse)?")
    return any(map(made.fullmatch, keep))


def _fits(node: Any, target: Target) -> bool:
    x, hx, _, _, _, _, _, _, batch_first = node.args
    first = hx[0] if called(node) == "lstm" else hx
    if not isinstance(batch_first, bool) or len(shape_of(x)) != 3:
        return False
    rows = shape_of(x)[0 if batch_first else 1]
    return has_kernel(called(node), rows, shape_of(first)[-1], dtype_of(x), target)


def _weights(step: Any) -> tuple[Any, ...]:
    return tuple(argument(step, k, "") for k in range(2, 6))


def _states(step: Any) -> list[Any]:
    return list(step.args[1]) if isinstance(step.args[1], list | tuple) else [step.args[1]]


def _results(step: Any) -> list[Any]:
    """Return the nodes of a step's h and, for an lstm, its c; None for a value that no node
    reads.
    """
    if CELLS[called(step)] != "lstm":
        return [step]
    items: list[Any] = [None, None]
    for user in step.users:
        if is_item(user):
            items[user.args[1]] = user
    return items


def _loops(edit: Edit) -> list[Loop]:
    """Return the chains of at least LEAST_STEPS cell calls with the same weights."""
    loops: list[Loop] = []
    taken: set[Any] = set()
    for node in edit.nodes:
        if called(node) not in CELLS or node in taken or dtype_of(node) not in FLOATS:
            continue
        steps = [node]
        while (later := _next(steps[-1])) is not None:
            steps.append(later)
        taken.update(steps)
        if len(steps) >= LEAST_STEPS:
            loops.append(Loop(CELLS[called(node)], tuple(steps)))
    return loops


def _next(step: Any) -> Any:
    """Return the step that reads all states of this one; None if there is none."""
    results = _results(step)
    if None in results:
        return None
    for user in results[0].users:
        same = user.op == "call_function" and called(user) == called(step)
        if same and _states(user) == results and _weights(user) == _weights(step):
            return user
    return None


def _replaced(edit: Edit, loop: Loop, device: str) -> bool:
    """Replace a loop by one call; return False if an input of a step depends on the loop."""
    inputs = [step.args[0] for step in loop.steps]
    if len(shape_of(inputs[0])) != 2 or len({shape_of(x) for x in inputs}) != 1:
        return False
    position = {node: k for k, node in enumerate(edit.nodes)}
    if _depends(inputs, set(loop.steps), position[loop.steps[0]], position):
        return False
    edit.graph.inserting_before(loop.steps[-1])
    sequence, batch_first = _sequence(edit, inputs)
    states = _states(loop.steps[0])
    own = device == "cpu" and shape_of(states[0])[-1] <= MOST_HIDDEN
    call = _whole(edit, loop.cell, sequence, states, loop.weights, False, batch_first, own)
    call.name = f"{loop.steps[0].name}_loop"
    outputs, last = _outputs(edit, loop.cell, call, own)
    _stacks(edit, loop, outputs)
    for k, step in enumerate(loop.steps):
        results = _results(step)
        if results[0] is not None and results[0].users:
            edit.replace(results[0], _step(edit, outputs, k))
    if last is not None and (cell := _results(loop.steps[-1])[1]) is not None:
        edit.replace(cell, last)
    return True


def _depends(inputs: Sequence[Any], steps: set[Any], first: int, position: dict[Any, int]) -> bool:
    """Return True if one of `inputs` depends on a step of the loop.

    `position` has the index of each node that existed before the edits; `first` is the first
    step's.
    """
    stack, seen = list(inputs), set()
    while stack:
        node = stack.pop()
        # Nodes before the first step depend on no step. Nodes of the edits have no index: follow
        # their inputs.
        if node in seen or position.get(node, first) < first:
            continue
        if node in steps:
            return True
        seen.add(node)
        stack += node.all_input_nodes
    return False


def _sequence(edit: Edit, inputs: Sequence[Any]) -> tuple[Any, bool]:
    """Return the node that contains the inputs of all steps, and True if its first dimension is the
    batch.
    """
    import torch

    bases = {x.args[0] for x in inputs if called(x) == "select"}
    if len(bases) == 1 and all(called(x) == "select" for x in inputs):
        base = bases.pop()
        dims = {x.args[1] % len(shape_of(base)) for x in inputs}
        if len(shape_of(base)) == 3 and dims <= {0, 1} and len(dims) == 1:
            (dim,) = dims
            extent = shape_of(base)[dim]
            if [x.args[2] % extent for x in inputs] == list(range(extent)):
                return base, dim == 1
    return edit.call(torch.ops.aten.stack.default, (list(inputs),)), False


def _whole(
    edit: Edit,
    cell: str,
    x: Any,
    states: Sequence[Any],
    weights: Sequence[Any],
    reverse: bool,
    batch_first: bool,
    own: bool,
    processors: int = 0,
) -> Any:
    """Add the call that computes all steps of a loop: a generated kernel if `own`, else torch's
    layer.
    """
    import torch

    steps, rows = shape_of(x)[:2][::-1] if batch_first else shape_of(x)[:2]
    hidden = shape_of(states[0])[-1]
    if own:
        options = {
            "cell": cell, "reverse": reverse, "batch_first": batch_first, "processors": processors,
        }  # fmt: skip
        call = edit.call(
            recurrence, (x, tuple(states), *weights), options, (steps, rows, hidden), x
        )
        value = call.meta["val"]
        call.meta["val"] = (value, value.new_empty((rows, hidden))) if cell == "lstm" else (value,)
        return call
    aten = torch.ops.aten
    first = [edit.call(aten.unsqueeze.default, (state, 0)) for state in states]
    present = [w for w in weights if w is not None]
    flags = (len(present) == 4, 1, 0.0, False, False, batch_first)
    layer = getattr(aten, cell).input
    return edit.call(layer, (x, first if cell == "lstm" else first[0], present, *flags))


def _outputs(edit: Edit, cell: str, call: Any, own: bool) -> tuple[Any, Any]:
    """Add nodes for the results of a call: h of all steps, steps first, and for an lstm the last
    c.
    """
    import operator

    import torch

    def item(k: int) -> Any:
        return edit.call(operator.getitem, (call, k))

    aten = torch.ops.aten
    outputs = item(0)
    if own:
        return outputs, item(1) if cell == "lstm" else None
    if call.args[-1]:
        outputs = edit.call(aten.transpose.int, (outputs, 0, 1))
    last = edit.call(aten.select.int, (item(2), 0, 0)) if cell == "lstm" else None
    return outputs, last


def _step(edit: Edit, outputs: Any, k: int) -> Any:
    import torch

    return edit.call(torch.ops.aten.select.int, (outputs, 0, k))


def _stacks(edit: Edit, loop: Loop, outputs: Any) -> None:
    """Replace nodes that stack h of all steps in order by the result of the call."""
    import torch

    aten = torch.ops.aten
    states = [_results(step)[0] for step in loop.steps]
    if None in states:
        return
    for user in list(states[0].users):
        name = called(user)
        if name == "stack" and list(user.args[0]) == states:
            stack, dim = user, argument(user, 1, "dim", 0) % 3
        elif name == "unsqueeze" and len(user.users) == 1:
            stack, dim = next(iter(user.users)), user.args[1] % 3
            if not _joins(stack, states, dim):
                continue
        else:
            continue
        if dim == 0:
            edit.replace(stack, outputs)
        elif dim == 1:
            moved = edit.call(aten.transpose.int, (outputs, 0, 1))
            options = {"memory_format": torch.contiguous_format}
            edit.replace(stack, edit.call(aten.clone.default, (moved,), options))


def _joins(node: Any, states: Sequence[Any], dim: int) -> bool:
    """Return True if `node` concatenates h of all steps in order along a new dimension `dim`."""
    if called(node) != "cat" or argument(node, 1, "dim", 0) % 3 != dim:
        return False
    parts = list(node.args[0])
    return len(parts) == len(states) and all(
        called(part) == "unsqueeze" and part.args[0] is state and part.args[1] % 3 == dim
        for part, state in zip(parts, states, strict=True)
    )


def _layers(edit: Edit, node: Any, target: Target | None = None) -> bool:
    """Replace a recurrent layer of torch by generated kernels; return False if it does not qualify.

    Without a target the kernels are for the CPU.
    """
    import torch

    cell, aten = called(node), torch.ops.aten
    x, hx, weights, biased, layers, _, _, both, batch_first = node.args
    directions = 2 if both else 1
    count = 4 if biased else 2
    first = hx if cell == "lstm" else [hx]
    plain = isinstance(batch_first, bool) and len(shape_of(x)) == 3 and dtype_of(x) in FLOATS
    plain = plain and (target is not None or shape_of(first[0])[-1] <= MOST_HIDDEN)
    processors = target.processors if target else 0
    if not plain or len(weights) != count * layers * directions:
        return False
    edit.graph.inserting_before(node)
    hidden: list[Any] = []
    cells: list[Any] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            k = layer * directions + direction
            own = [*weights[k * count : (k + 1) * count], None, None][:4]
            states = [edit.call(aten.select.int, (state, 0, k)) for state in first]
            reverse = direction == 1
            call = _whole(edit, cell, x, states, own, reverse, batch_first, True, processors)
            call.name = f"{node.name}_{layer}" + ("_reverse" if reverse else "")
            result, last = _outputs(edit, cell, call, True)
            outputs.append(result)
            hidden.append(_step(edit, result, 0 if reverse else shape_of(result)[0] - 1))
            cells.append(last)
        x, batch_first = outputs[0], False
        if both:
            x = edit.call(aten.cat.default, (outputs, 2))
    _layer_results(edit, node, x, [hidden, cells])
    return True


def _layer_results(edit: Edit, node: Any, outputs: Any, states: Sequence[list[Any]]) -> None:
    import torch

    aten = torch.ops.aten
    for item in list(node.users):
        k = item.args[1]
        if not item.users:
            continue
        if k > 0:
            edit.replace(item, edit.call(aten.stack.default, (states[k - 1],)))
            continue
        result = outputs
        if node.args[-1]:
            result = edit.call(aten.transpose.int, (outputs, 0, 1))
            if item.meta["val"].is_contiguous():
                options = {"memory_format": torch.contiguous_format}
                result = edit.call(aten.clone.default, (result,), options)
        edit.replace(item, result)
