"""What a task is judged with, and the strict rule with the doubts that come before a refusal.

The rule itself is `tolerance`'s; the oracle is asked only where an answer would be refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cuagent.task import Task
from cuagent.verify.bounds import round_numbers
from cuagent.verify.inputs import LENIENT, Inputs
from cuagent.verify.oracle import Doubt
from cuagent.verify.perturb import real
from cuagent.verify.reductions import Terms
from cuagent.verify.repertoire import Turns
from cuagent.verify.specials import numbers_only
from cuagent.verify.ties import places_of
from cuagent.verify.tolerance import Expected, Finding, strict
from cuagent.worker import Arena

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Stage:
    """What a task is judged with: the referee's memory and what the oracle said about the task."""

    task: Task
    inputs: Arena
    """As the oracle drew them; no worker is lent these."""
    lent: Arena
    """The worker's copy."""
    outputs: Arena
    weights: Arena
    answers: dict[str, Arena]
    """declared, precise, spread, places; moved, tied and reordered, which are asked for in
    doubt only."""
    traced: frozenset[int]
    """Outputs whose indices can be followed to what they were chosen from."""
    kinds: frozenset[Inputs]
    turns: Mapping[Inputs, Turns]
    terms: Terms

    @property
    def discrete(self) -> bool:
        """Whether integers or booleans are among the outputs."""
        return not all(real(view) for view in self.outputs.tensors())

    def expected(self) -> Expected:
        """What the oracle answered last; views of its memory, which its next answer overwrites."""
        declared, precise, spread, chosen = (
            self.answers[name].tensors() for name in ("declared", "precise", "spread", "places")
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
        doubt: Doubt | None = None,
    ) -> Finding:
        """The strict rule; an error is held against nobody before `doubt` says what moves.

        Nor is a choice among equals: of what is exact here, or whole, the answer as a whole may be
        the reference's in any one order of equals.
        """
        finding = self._strict(outputs, expected, kind)
        if doubt is None or finding.passed or (math.isinf(finding.ratio) and not self.chooses):
            return finding
        expected = replace(expected, moved=doubt.moved)
        finding = self._strict(outputs, expected, kind)
        firm = self._firm(expected, kind)
        if finding.passed or not any(firm):
            return finding
        others = (_instead(expected, other, firm) for other in doubt.reordered())
        findings = (self._strict(outputs, other, kind) for other in others)
        return next((other for other in findings if other.passed), finding)

    @property
    def chooses(self) -> bool:
        """Whether operators choose among elements of which some may be equal."""
        return bool(self.answers["reordered"].tensors())

    def _firm(self, expected: Expected, kind: Inputs) -> list[bool]:
        """Which outputs no roundoff excuses: integers but for traced indices, and what is exact."""
        exact = round_numbers(kind, self.task.precision)
        both = zip(expected.declared, expected.precise, strict=True)
        return [
            exact and bool((r == y).all()) if real(r) else number not in self.traced
            for number, (r, y) in enumerate(both)
        ]

    def _strict(self, outputs: Sequence[Tensor], expected: Expected, kind: Inputs) -> Finding:
        if kind in LENIENT:
            outputs, expected = numbers_only(outputs, expected)
        return strict(outputs, expected, kind, self.terms, self.task.precision)


def _instead(expected: Expected, other: Sequence[Tensor], where: Sequence[bool]) -> Expected:
    """What is expected, with another answer of the reference for some outputs."""

    def chosen(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [o if w else t for t, o, w in zip(tensors, other, where, strict=True)]

    return replace(expected, declared=chosen(expected.declared), precise=chosen(expected.precise))
