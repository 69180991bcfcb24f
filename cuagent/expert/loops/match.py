"""Replace loops over time by one operation, `spec.time_loop`, that a kernel computes.

A loop qualifies if each step updates its states by elementwise operations, and by sums over
dimensions of the states, from the states and from slices of tensors. Elementwise operations on the
stacked results become part of the loop. The result is equal in exact arithmetic. Not covered:
states that change their shape, reads of more than one step back, products of the state with a
matrix (see `recurrences.match`).
"""

from __future__ import annotations

from typing import Any

from cuagent.expert.capture.editing import Edit
from cuagent.expert.capture.export import Captured
from cuagent.expert.graph.storage import NestError
from cuagent.expert.loops.hoist import AllSteps
from cuagent.expert.loops.layers import replaced_by_layer, split_joined_inputs
from cuagent.expert.loops.periods import repeats
from cuagent.expert.loops.replacement import Replacement
from cuagent.expert.loops.roll import Local, Rolled, rolled
from cuagent.expert.loops.slices import NoLoop

LOOP = "_loop"
"""End of the name of a call that replaces a loop."""
MOST_TRIES = 24
"""Largest number of repeated parts of a graph that are examined."""
FAILURES = (NoLoop, NestError, RuntimeError, TypeError, ValueError, IndexError)
"""Errors that mean that a loop cannot be replaced.

torch raises the last four if an operator does not take slices of its operands. Replacements made
before the error are not undone: each is right without the others.
"""


def with_loops(
    captured: Captured, device: str = "cpu", keep: frozenset[str] = frozenset()
) -> tuple[Captured, tuple[str, ...]]:
    """Return (graph with one call for each replaced loop, description of each replaced loop).

    A loop whose call would have a name in `keep` is not replaced.
    """
    edit = Edit(captured)
    split_joined_inputs(edit)
    nodes = [node for node in edit.nodes if node.op == "call_function"]
    items = [f"{node.target}{_shape_text(node)}" for node in nodes]
    taken: set[Any] = set()
    found = []
    for repeat in repeats(items)[:MOST_TRIES]:
        part = nodes[repeat.start : repeat.end]
        if not taken.isdisjoint(part):
            continue
        for loop in rolled(nodes, repeat):
            name = loop.steps[0][max(loop.initial)].name + LOOP
            if name in keep:
                taken.update(part)
                continue
            try:
                Replacement(edit, loop, name).run(device)
            except FAILURES:
                if device == "cuda" and replaced_by_layer(edit, loop):
                    taken.update(node for step in loop.steps for node in step)
                    found.append(f"{len(loop.steps)} steps of a cell")
                    continue
                if hoisted := _with_hoisted_products(edit, loop):
                    taken.update(node for step in loop.steps for node in step)
                    found.append(f"{len(loop.steps)} steps of {hoisted} input products")
                continue
            taken.update(node for step in loop.steps for node in step)
            found.append(f"{len(loop.steps)} steps of {len(loop.steps[0])} operators")
    return (edit.result(), tuple(found)) if found else (captured, ())


def _shape_text(node: Any) -> str:
    value = node.meta.get("val")
    return str(tuple(value.shape)) if hasattr(value, "shape") else ""


def _with_hoisted_products(edit: Edit, loop: Rolled) -> int:
    """Compute the loop's products without a state by one call each for all steps; return their
    number.
    """
    import torch

    edit.graph.inserting_before(loop.steps[0][0])
    steps, count = AllSteps(loop, edit), 0
    for position in range(len(loop.steps[0])):
        if not steps.is_hoisted(position):
            continue
        try:
            whole, dim = steps.node(Local(position, 0))
        except NoLoop:
            continue
        count += 1
        for k, nodes in enumerate(loop.steps):
            value = edit.call(torch.ops.aten.select.int, (whole, dim, k))
            edit.replace(nodes[position], value)
    return count
