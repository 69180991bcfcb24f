"""Define a loop over time as one operation of the graph, and the function that runs it in torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuagent.expert.graph.graph import Graph

RESULT = "result"
"""`Node.op` of the nodes with the second and later results of a loop."""

PRODUCT = "product"
"""`Node.op` of the nodes in a loop's body that multiply a state by a matrix."""


@dataclass(frozen=True)
class Slot:
    """Source of a value that a step reads from outside: a tensor, its slice, or a state."""

    leaf: int | None
    """Index of the tensor among the loop's arguments; for a state, of its first value.

    None for a state that begins with a number.
    """
    dim: int | None = None
    """Dimension of the tensor along which step k reads a slice; None if each step reads it
    completely.
    """
    first: int = 0
    stride: int = 1
    """Distance between the slices of adjacent steps: step k reads index `first + k * stride`."""
    state: bool = False
    """True for a state: later steps read the value that the previous step computed."""
    number: float = 0.0
    """First value of a state that begins with a number."""


@dataclass(frozen=True)
class Result:
    """Form in which a loop returns one value of its body."""

    dim: int | None
    """Dimension of the result along which the steps' values are stacked.

    None for the value of the last step alone.
    """
    reverse: bool = False
    """True if the last step's value comes first."""


@dataclass(frozen=True)
class Loop:
    """A loop over time. The body's outputs are the new states, then the results."""

    steps: int
    body: Graph
    slots: dict[str, Slot]
    """Slot of each input node of the body, with the node's name as key.

    States are in the order of their new values.
    """
    results: tuple[Result, ...]
    program: Any = None
    """The body as a torch.fx graph, which `time_loop` runs."""

    @property
    def states(self) -> list[str]:
        """Names of the body's input nodes that are states."""
        return [name for name, slot in self.slots.items() if slot.state]


def weights_of(loop: Loop) -> set[tuple[int, bool]]:
    """Return the matrices of the products in a loop: (index among the loop's arguments, is
    transposed).
    """
    found = set()
    for node in loop.body.nodes:
        if node.op == PRODUCT:
            leaf = loop.slots[str(node.args[1])].leaf
            assert leaf is not None
            found.add((leaf, bool(node.spec)))
    return found


def state_product(x: Any, weight: Any, *, transposed: bool = False) -> Any:
    """Return the product of `x`, a value of the loop, with a matrix that all steps read."""
    return x @ (weight.T if transposed else weight)


def time_loop(leaves: tuple[Any, ...], *, loop: Loop) -> tuple[Any, ...]:
    """Run a loop step by step in torch; return its results. `leaves` are its arguments."""
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
