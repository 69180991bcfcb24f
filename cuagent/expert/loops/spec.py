"""Define a loop over time as one operation, and the call that runs it step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuagent.expert.graph.graph import Graph

RESULT = "result"
"""Operator of the nodes with the second and later results of a loop."""

PRODUCT = "product"
"""Operator of the nodes of a body that multiply a state by a matrix."""


@dataclass(frozen=True)
class Slot:
    """A value that the body reads from outside of its step."""

    leaf: int | None
    """Index of the tensor among the loop's leaves (for a state: of its first value); None for a
    number."""
    dim: int | None = None
    """Dimension of the tensor along which the steps lie; None for a tensor that all steps read."""
    first: int = 0
    stride: int = 1
    """Distance between the indices of adjacent steps: step k reads `first + k * stride`."""
    state: bool = False
    """True for a state: later steps read its value of the step before."""
    number: float = 0.0
    """First value of a state without a tensor."""


@dataclass(frozen=True)
class Result:
    """A value of the body that the loop returns."""

    dim: int | None
    """Dimension of the steps in the result; None for the value of the last step alone."""
    reverse: bool = False
    """True if the last step comes first."""


@dataclass(frozen=True)
class Loop:
    """All steps of a loop. The body's outputs are the new states, then the results."""

    steps: int
    body: Graph
    slots: dict[str, Slot]
    """The slot of each input node of the body; states in the order of their new values."""
    results: tuple[Result, ...]
    program: Any = None
    """The body as a torch.fx graph."""

    @property
    def states(self) -> list[str]:
        """Input nodes of the body with the states."""
        return [name for name, slot in self.slots.items() if slot.state]


def weights_of(loop: Loop) -> set[tuple[int, bool]]:
    """Return the leaf of the matrix of each product, with True if the matrix is transposed."""
    found = set()
    for node in loop.body.nodes:
        if node.op == PRODUCT:
            leaf = loop.slots[str(node.args[1])].leaf
            assert leaf is not None
            found.add((leaf, bool(node.spec)))
    return found


def state_product(x: Any, weight: Any, *, transposed: bool = False) -> Any:
    """Return the product of a value of the loop with a matrix that all steps read."""
    return x @ (weight.T if transposed else weight)


def time_loop(leaves: tuple[Any, ...], *, loop: Loop) -> tuple[Any, ...]:
    """Return the results of a loop, computed step by step."""
    import torch

    module = torch.fx.GraphModule(torch.nn.Module(), loop.program)
    slots = list(loop.slots.values())
    examples = [n.meta["val"] for n in loop.program.nodes if n.op == "placeholder"]
    states = []
    for slot, example in zip(slots, examples, strict=True):
        if slot.state:
            full = torch.full(example.shape, slot.number, dtype=example.dtype)
            states.append(full if slot.leaf is None else leaves[slot.leaf])
    collected: list[list[Any]] = [[] for _ in loop.results]
    for k in range(loop.steps):
        given, position = [], 0
        for slot in slots:
            if slot.state:
                given.append(states[position])
                position += 1
            else:
                assert slot.leaf is not None
                tensor = leaves[slot.leaf]
                index = slot.first + k * slot.stride
                given.append(tensor if slot.dim is None else tensor.select(slot.dim, index))
        values = module(*given)
        states = list(values[: len(states)])
        for series, value in zip(collected, values[len(states) :], strict=True):
            series.append(value)
    return tuple(
        series[-1] if r.dim is None else torch.stack(series[::-1] if r.reverse else series, r.dim)
        for series, r in zip(collected, loop.results, strict=True)
    )
