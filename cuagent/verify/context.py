"""What a task is judged with, and the strict rule with the doubts that come before a refusal.

The rule itself is `tolerance`'s; the oracle is asked only where an answer would be refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cuagent.task import Device, Precision, Task
from cuagent.verify.inputs.kinds import EXACT, Inputs
from cuagent.verify.inputs.repertoire import SweepCount
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.oracle.client import SensitivityQuery
from cuagent.verify.rules.bounds import is_exact_probe
from cuagent.verify.rules.ties import places_of
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected, Finding
from cuagent.verify.tally import ROUNDS
from cuagent.verify.tensors import is_inexact
from cuagent.verify.trace.reductions import Terms
from cuagent.worker import Arena, Layout

if TYPE_CHECKING:
    from torch import Tensor

SPREAD_S, LOGIC_SPREAD_S = 0.1, 0.02
"""About how long the oracle may perturb for one draw; those that judge logic have wide bounds."""
FEW_OPPOSITES = 2
"""Pairs of perturbations by which a draw of a sweep, one of many, looks for ties."""
KEPT_BYTES = 1 << 30
"""Of inputs and outputs that the draws of a block need; it is of one call whatever its size."""
TOGETHER = 4
"""Draws whose calls are made in one block."""
AHEAD_BYTES = {Device.CPU: 1 << 28, Device.CUDA: 1 << 29}
"""Of inputs, of answers and of weights that the oracle makes before they are needed, each."""
MOST_AHEAD = 40


@dataclass(frozen=True)
class VerifyContext:
    """What a task is judged with: the referee's memory and what the oracle said about the task."""

    task: Task
    inputs: Arena
    """As the oracle drew them, more sets than are called at a time; no worker is lent these."""
    lent: Arena
    """The worker's copy."""
    outputs: Arena
    weights: Arena
    """The worker's copy."""
    prepared_weights: Arena
    """As the oracle made them, a slot for each round where there is room for that."""
    answers: dict[str, Arena]
    """declared, precise, spread, places, of several sets; moved, tied and reordered, which are
    asked for in doubt only."""
    state: tuple[str, ...]
    """Names of the weights."""
    traced: frozenset[int]
    """Outputs whose indices can be followed to what they were chosen from."""
    kinds: frozenset[Inputs]
    grown: tuple[Weights, ...]
    """Kinds of grown weights that the model has a use for."""
    turns: Mapping[Inputs, SweepCount]
    terms: Terms

    @staticmethod
    def open(task: Task, about: Mapping[str, Any]) -> VerifyContext:
        """The memory for a task, and what its oracle's `describe` says."""
        device, layouts = task.device, layouts_of(about)
        calls = max(1, min(TOGETHER, KEPT_BYTES // max(1, bytes_per_call(layouts))))
        answers = ("output", "precise", "precise", "places")
        prefetcher = _ahead(device, *(layouts[name] for name in answers))

        def memory(name: str, slots: int) -> Arena:
            return Arena.create(layouts[name], slots, device.value)

        return VerifyContext(
            task=task,
            inputs=memory("inputs", max(calls, _ahead(device, layouts["inputs"]))),
            lent=memory("inputs", calls),
            outputs=memory("output", calls),
            weights=memory("state", 1),
            prepared_weights=memory("state", min(len(ROUNDS), _ahead(device, layouts["state"]))),
            answers={
                "declared": memory("output", prefetcher),
                "precise": memory("precise", prefetcher),
                "spread": memory("precise", prefetcher),
                "places": memory("places", prefetcher),
                "moved": memory("precise", 1),
                "tied": memory("tied", 1),
                "reordered": memory("reordered", 1),
            },
            state=tuple(about["state"]),
            traced=frozenset(about["traced"]),
            kinds=frozenset(Inputs(kind) for kind in about["kinds"]),
            grown=tuple(Weights(kind) for kind in about["grown"]),
            turns={Inputs(kind): SweepCount(*n) for kind, n in about["turns"].items()},
            terms=Terms(*about["terms"]),
        )

    @property
    def arenas(self) -> list[Arena]:
        """All of its memory."""
        lent = (self.inputs, self.lent, self.outputs, self.weights, self.prepared_weights)
        return [*lent, *self.answers.values()]

    def close(self) -> None:
        """Give all memory back."""
        for arena in self.arenas:
            arena.close()

    def wants_spread(self, kind: Inputs) -> bool:
        """Whether more hangs on the spread than the passing of what passes without it as well.

        Every bound grows with it. But a zero-mean draw tells what precision was seen, coarser
        arithmetic is held against it, and near-ties are found by it.
        """
        discrete = not all(is_inexact(view) for view in self.outputs.tensors())
        return kind is Inputs.NORMAL or discrete or self.task.precision is not Precision.MATCH

    def expected(self, slot: int = 0) -> Expected:
        """What the oracle answered into a slot; views, which its next answer there overwrites."""
        declared, precise, spread, chosen = (
            self.answers[name].tensors(slot) for name in ("declared", "precise", "spread", "places")
        )
        found = iter(places_of(chosen))
        outputs = range(len(declared))
        places = [next(found) if number in self.traced else None for number in outputs]
        return Expected(declared, precise, spread, places)

    def judged(
        self,
        outputs: Sequence[Tensor],
        expected: Expected,
        kind: Inputs,
        sensitivity: SensitivityQuery | None = None,
        *,
        told: bool = True,
    ) -> Finding:
        """The strict rule; an error is held against nobody before `doubt` says what moves.

        Nor is a choice among equals: of what is exact here, or whole, the answer as a whole may be
        the reference's in any one order of equals.
        """
        finding = self._strict(outputs, expected, kind, told=told)
        if sensitivity is None or (math.isinf(finding.ratio) and not self.chooses):
            return finding
        if finding.passed and not self._by_choices(outputs, expected, kind):
            return finding
        expected = replace(expected, sensitivity=sensitivity.moved)
        finding = self._strict(outputs, expected, kind)
        firm = self._firm(expected, kind)
        if finding.passed or not any(firm):
            return finding
        others = (_instead(expected, other, firm) for other in sensitivity.reordered())
        findings = (self._strict(outputs, other, kind, told=False) for other in others)
        return next((other for other in findings if other.passed), finding)

    def _by_choices(self, outputs: Sequence[Tensor], expected: Expected, kind: Inputs) -> bool:
        """Whether what passes may do so only because choices among equals widen the bounds, for
        what does not hang on them too."""
        if not self.chooses or kind not in EXACT:
            return False
        firm = replace(expected, spread=[s.new_zeros(()).expand(s.shape) for s in expected.spread])
        return not self._strict(outputs, firm, kind, told=False).passed

    @property
    def chooses(self) -> bool:
        """Whether operators choose among elements of which some may be equal."""
        return bool(self.answers["reordered"].layout.leaves)

    def _firm(self, expected: Expected, kind: Inputs) -> list[bool]:
        """Which outputs no roundoff excuses: integers but for traced indices, and what is exact."""
        exact = is_exact_probe(kind, self.task.precision)
        both = zip(expected.declared, expected.precise, strict=True)
        return [
            exact and bool((r == y).all()) if is_inexact(r) else number not in self.traced
            for number, (r, y) in enumerate(both)
        ]

    def _strict(
        self, outputs: Sequence[Tensor], expected: Expected, kind: Inputs, *, told: bool = True
    ) -> Finding:
        return strict(outputs, expected, kind, self.terms, self.task.precision, explain=told)


def _instead(expected: Expected, other: Sequence[Tensor], where: Sequence[bool]) -> Expected:
    """What is expected, with another answer of the reference for some outputs."""

    def chosen(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [o if w else t for t, o, w in zip(tensors, other, where, strict=True)]

    return replace(expected, declared=chosen(expected.declared), precise=chosen(expected.precise))


def layouts_of(about: Mapping[str, Any]) -> dict[str, Layout]:
    """The forms that the oracle describes, by name."""
    names = ("inputs", "output", "precise", "places", "tied", "reordered", "state")
    return {name: Layout.from_json(about[f"{name}_layout"]) for name in names}


def bytes_per_call(layouts: Mapping[str, Layout]) -> int:
    """Of one input set and its outputs, all twice."""
    return 2 * (layouts["inputs"].size + layouts["output"].size)


def _ahead(device: Device, *layouts: Layout) -> int:
    """How many slots of these the oracle may fill before they are needed; one where few fit."""
    size = max(1, sum(layout.size for layout in layouts))
    return max(1, min(MOST_AHEAD, AHEAD_BYTES[device] // size))
