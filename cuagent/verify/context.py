"""Arenas and facts with which one task is judged, and the strict rule applied to a draw.

The rule's formulas are in `rules/tolerance.py`. The oracle measures the sensitivity of an answer
only if a candidate's output would otherwise be rejected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from cuagent.task import Device, Task
from cuagent.task.step import Step
from cuagent.verify.inputs.kinds import EXACT, LENIENT, Inputs
from cuagent.verify.memory_plan import MemoryPlan
from cuagent.verify.oracle.client import SensitivityQuery
from cuagent.verify.oracle.facts import TaskFacts
from cuagent.verify.rules.bounds import OWN_ARITHMETIC, is_exact_probe
from cuagent.verify.rules.ties import places_of
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected, Finding
from cuagent.verify.tally import ROUNDS
from cuagent.verify.tensors import in_blocks, is_inexact
from cuagent.worker import Arena, Layout

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.verify.memory_plan import MemoryPlan

SPREAD_S, LOGIC_SPREAD_S = 0.1, 0.02
"""Approximate seconds in which the oracle measures the spread of one draw.

The first applies to draws that judge precision, the second to draws that judge logic, whose bounds
are wide.
"""
FEW_OPPOSITES = 2
"""Number of opposite perturbation pairs that search for near-ties in each draw of a sweep."""
BLOCK_BYTES = 1 << 30
"""Largest size in bytes of the inputs and outputs of one block of calls; a block has at least one.
"""
BLOCK_DRAWS = 4
"""Largest number of draws in one block of calls."""
AHEAD_BYTES = {Device.CPU: 1 << 28, Device.CUDA: 1 << 29}
"""Bytes of inputs, of answers and of weights (each) that the oracle may compute ahead of need."""
MAX_AHEAD = 40
"""Largest number of slots that the oracle may fill ahead of need."""


@dataclass(frozen=True)
class VerifyContext:
    """Arenas of one task that the referee owns, and the oracle's facts about the task."""

    task: Task
    inputs: Arena
    """Original inputs as the oracle drew them, in more slots than a block needs; no worker maps
    them.
    """
    lent: Arena
    """Copy of the inputs that the candidate's worker maps."""
    outputs: Arena
    weights: Arena
    """Copy of the weights that the candidate's worker maps."""
    prepared_weights: Arena
    """Original weights as the oracle made them; one slot per round if memory allows."""
    answers: dict[str, Arena]
    """The oracle's results, by name.

    `declared`, `precise`, `spread` and `places` contain the answers to several draws (`Expected`).
    `moved`, `tied` and `reordered` contain the results of one sensitivity query (`Sensitivity`).
    """
    facts: TaskFacts

    @staticmethod
    def open(task: Task, facts: TaskFacts, room: MemoryPlan) -> VerifyContext:
        """Allocate the arenas for `task`.

        The sizes follow from the oracle's facts and the memory plan.
        """
        device, layouts = task.device, facts.layouts
        calls = max(1, min(BLOCK_DRAWS, BLOCK_BYTES // max(1, layouts.bytes_per_call)))
        output, precise, places, state = (
            layouts.output,
            layouts.precise,
            layouts.places,
            layouts.state,
        )
        slots = _slots_ahead(device, output, precise, layouts.spread, places)
        inputs, rounds = _slots_ahead(device, layouts.inputs), _slots_ahead(device, state)
        if facts.large:
            calls = slots = inputs = rounds = 1

        def arena(layout: Layout, count: int, where: str = device.value) -> Arena:
            return Arena.create(layout, count, where)

        # These arenas are needed only before a rejection. So if device memory is scarce, they are
        # the ones in host memory, although copying gigabytes there takes many seconds.
        needed = room.verdict + layouts.moved.size + layouts.tied.size + layouts.reordered.size
        rare = "cpu" if needed > room.available(device.value) else device.value
        return VerifyContext(
            task=task,
            inputs=arena(layouts.inputs, max(calls, inputs)),
            lent=arena(layouts.inputs, calls),
            outputs=arena(output, calls),
            weights=arena(state, 1),
            prepared_weights=arena(state, min(len(ROUNDS), rounds)),
            answers={
                "declared": arena(output, slots),
                "precise": arena(precise, slots),
                "spread": arena(layouts.spread, slots),
                "places": arena(places, slots),
                "moved": arena(layouts.moved, 1, rare),
                "tied": arena(layouts.tied, 1, rare),
                "reordered": arena(layouts.reordered, 1, rare),
            },
            facts=facts,
        )

    @cached_property
    def gradients(self) -> int:
        """Number of outputs that are gradients (training steps only). They are the last outputs."""
        step = Step.of(self.task)
        return 0 if step is None else len(step.inputs) + len(step.parameters)

    @property
    def arenas(self) -> list[Arena]:
        """All arenas of the context."""
        lent = (self.inputs, self.lent, self.outputs, self.weights, self.prepared_weights)
        return [*lent, *self.answers.values()]

    def close(self) -> None:
        """Release the memory of all arenas."""
        for arena in self.arenas:
            arena.close()

    def needs_spread(self, kind: Inputs) -> bool:
        """Return True if the spread of a draw of `kind` is needed even if the outputs pass without
        it.

        Every bound grows with the spread, so outputs that pass without it also pass with it. But
        three uses need it: a zero-mean draw shows the precision that was used, coarser arithmetic
        is compared with the spread, and the spread finds near-ties.
        """
        discrete = not all(is_inexact(view) for view in self.outputs.tensors())
        return kind is Inputs.NORMAL or discrete or self.task.precision not in OWN_ARITHMETIC

    def expected(self, slot: int = 0) -> Expected:
        """Return the oracle's answer in a slot, as views of the arenas.

        The next answer that is written to the slot overwrites it.
        """
        declared, precise, spread, chosen = (
            self.answers[name].tensors(slot) for name in ("declared", "precise", "spread", "places")
        )
        found = iter(places_of(chosen))
        outputs = range(len(declared))
        places = [next(found) if number in self.facts.traced else None for number in outputs]
        return Expected(declared, precise, spread, places)

    def judged(
        self,
        outputs: Sequence[Tensor],
        expected: Expected,
        kind: Inputs,
        sensitivity: SensitivityQuery | None = None,
        *,
        explain: bool = True,
    ) -> Finding:
        """Judge a candidate's `outputs` against `expected` by the strict rule.

        With `sensitivity` an error rejects only if it exceeds the answer's sensitivity. If the
        reference chooses among equal elements, another choice is not an error: exact and integer
        outputs also pass if the reference gives all of them under another order of equal elements.
        With `explain` the finding describes the wrong elements.
        """
        if kind in LENIENT and self.gradients:
            expected = self._without_gradients(expected)
        finding = self._strict(outputs, expected, kind, explain=explain)
        if sensitivity is None or (math.isinf(finding.ratio) and not self.chooses):
            return finding
        if finding.passed and not self._passes_by_choices(outputs, expected, kind):
            return finding
        expected = replace(expected, sensitivity=sensitivity.moved)
        finding = self._strict(outputs, expected, kind, explain=explain)
        exact = self._exact_outputs(expected, kind)
        if finding.passed or not any(exact):
            return finding
        reordered = (_with_answer(expected, answer, exact) for answer in sensitivity.reordered())
        findings = (self._strict(outputs, answer, kind, explain=False) for answer in reordered)
        passed = next((found for found in findings if found.passed), None)
        if passed is None and sensitivity.moved.roundoff_chooses:
            # Integers computed from choices among near ties (a count) are judged on other draws.
            counts = [e and not is_inexact(x) for e, x in zip(exact, outputs, strict=True)]
            expected = _with_answer(expected, outputs, counts)
            finding = self._strict(outputs, expected, kind, explain=explain)
        return passed or finding

    def _without_gradients(self, expected: Expected) -> Expected:
        """Return `expected` with NaN for all gradients, so that the rule skips them.

        Where an input is NaN or infinite, a correct kernel may give other gradients than torch: a
        product of zero and infinity is NaN, but a mask by selection gives zero.
        """

        def replaced(tensors: Sequence[Tensor]) -> list[Tensor]:
            first = len(tensors) - self.gradients
            nans = [t.new_full((), math.nan).expand(t.shape) for t in tensors[first:]]
            return [*tensors[:first], *nans]

        return replace(
            expected, declared=replaced(expected.declared), precise=replaced(expected.precise)
        )

    def _passes_by_choices(
        self, outputs: Sequence[Tensor], expected: Expected, kind: Inputs
    ) -> bool:
        """Return True if outputs on an exact draw pass only because the spread widened their
        bounds.

        On exact draws the spread comes from choices among equal elements. It also widens the bounds
        of elements that do not depend on such choices.
        """
        if not self.chooses or kind not in EXACT:
            return False
        zeros = [s.new_zeros(()).expand(s.shape) for s in expected.spread]
        narrow = replace(expected, spread=zeros)
        return not self._strict(outputs, narrow, kind, explain=False).passed

    @property
    def chooses(self) -> bool:
        """True if the reference selects elements (max, sort, topk), so that ties matter."""
        return bool(self.answers["reordered"].layout.leaves)

    def _exact_outputs(self, expected: Expected, kind: Inputs) -> list[bool]:
        """Return one boolean per output: True if a correct kernel must give it without any
        roundoff.

        True for outputs whose fp64 and declared values are equal on an exact draw, and for integers
        that are not traced indices.
        """
        exact = is_exact_probe(kind, self.task.precision)
        both = zip(expected.declared, expected.precise, strict=True)
        return [
            exact and _equal(r, y) if is_inexact(r) else number not in self.facts.traced
            for number, (r, y) in enumerate(both)
        ]

    def _strict(
        self, outputs: Sequence[Tensor], expected: Expected, kind: Inputs, *, explain: bool = True
    ) -> Finding:
        return strict(
            outputs, expected, kind, self.facts.terms, self.task.precision, explain=explain
        )


def _equal(first: Tensor, second: Tensor) -> bool:
    """Return True if all elements are equal. Compares block by block to save memory."""
    return all(bool((x == y).all()) for x, y in in_blocks(first, second))


def _with_answer(expected: Expected, answer: Sequence[Tensor], where: Sequence[bool]) -> Expected:
    """Return `expected` with `answer` as the right values of the outputs where `where` is True."""

    def replaced(tensors: Sequence[Tensor]) -> list[Tensor]:
        each = zip(tensors, answer, where, strict=True)
        return [o.to(t.device) if w else t for t, o, w in each]

    return replace(
        expected, declared=replaced(expected.declared), precise=replaced(expected.precise)
    )


def _slots_ahead(device: Device, *layouts: Layout) -> int:
    """Return the number of slots (at least 1) of these layouts that the oracle may fill ahead of
    need.
    """
    size = max(1, sum(layout.size for layout in layouts))
    return max(1, min(MAX_AHEAD, AHEAD_BYTES[device] // size))
