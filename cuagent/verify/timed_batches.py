"""Draw the inputs of timed calls, and judge the outputs of timed calls.

Only the referee's process uses this module; `batch.py` decides which process may map a batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from cuagent.arms import CANDIDATE
from cuagent.verdict import RuleResult
from cuagent.verify.batch import Batch
from cuagent.verify.context import LOGIC_SPREAD_S, VerifyContext
from cuagent.verify.inputs.kinds import MAX_SWEEP, SWEEPS, Inputs
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.oracle.client import AnswerInfo, PerturbationBudget, SensitivityQuery
from cuagent.verify.processes import Processes
from cuagent.worker import Arena
from cuagent.worker.memory.arena import POISONS

if TYPE_CHECKING:
    from torch import Tensor

FEW_PAIRS = 8
"""Number of perturbation pairs in a sensitivity query outside of a verdict."""


class TimedBatches:
    """Creates, fills and judges the batches of one task. Close each batch with `discard`."""

    def __init__(self, processes: Processes, context: VerifyContext) -> None:
        self._processes, self._context = processes, context
        self._last: tuple[int, bool, AnswerInfo] | None = None
        """Answer that is in the context's arenas: (seed of the draw, has its spread, oracle's
        reply).

        None if the arenas have no answer for `check`.
        """

    def forget_answer(self) -> None:
        """Request a new answer at the next `check`, because the arenas of the last one were
        overwritten.
        """
        self._last = None

    def create(self, count: int, *, filled: bool = True) -> Batch:
        """Allocate a batch of `count` input sets with their outputs; close it with `discard`.

        With `filled` the inputs are drawn with `refill`.
        """
        device, facts = self._context.task.device.value, self._context.facts
        inputs, output = facts.layouts.inputs, facts.layouts.output
        batch = Batch(
            Arena.create(inputs, count, device),
            Arena.create(inputs, count, device),
            Arena.create(output, count, device),
            Arena.create(output, count, device),
            lean=facts.large,
        )
        if filled:
            self.refill(batch, range(count))
        return batch

    def refill(self, batch: Batch, slots: Iterable[int], kind: Inputs = Inputs.OWN) -> None:
        """Draw new inputs of `kind` for some slots of a batch, from secret seeds."""
        if self._context.facts.large:
            self._last = None
            self._processes.oracle.release(self._context.answers)
        for slot in slots:
            batch.seeds[slot] = Seeds().draw()
            step = secrets.randbelow(MAX_SWEEP) if kind in SWEEPS else 0
            self._processes.oracle.draw(kind, batch.seeds[slot], batch.inputs, slot, step)
            # As in a verdict: the guard bytes around an input must not identify it.
            batch.inputs.mend_guards(slot, secrets.choice(POISONS))
            batch.lay_out(CANDIDATE, [slot])
            batch.outputs.poison(POISONS[0], slot)

    def check(
        self,
        batch: Batch,
        slot: int = 0,
        outputs: Sequence[Tensor] | None = None,
        kind: Inputs = Inputs.OWN,
    ) -> RuleResult:
        """Judge the outputs of one slot, whose inputs are of `kind`, by the strict rule.

        By default the outputs are those of the trusted arm that ran last on this slot. Outputs that
        pass without the spread of the answer pass with it too, so it is measured only for other
        outputs.
        """
        self._processes.load_timed_weights()
        given = batch.outputs.tensors(slot) if outputs is None else outputs
        if not self._context.needs_spread(kind):
            result = self._checked(batch, slot, given, kind, spread=False)
            if result.passed:
                return result
        return self._checked(batch, slot, given, kind, spread=True)

    def _checked(
        self, batch: Batch, slot: int, given: Sequence[Tensor], kind: Inputs, *, spread: bool
    ) -> RuleResult:
        """Judge outputs by the strict rule; the oracle measures the spread of its answer only with
        `spread`.
        """
        seed, answers = batch.seeds[slot], self._context.answers
        if self._last is None or self._last[:2] != (seed, spread):
            seconds = LOGIC_SPREAD_S if spread else None
            budget = PerturbationBudget(seconds)
            reply = self._processes.oracle.answer(batch.inputs, slot, answers, seed, budget)
            self._last = seed, spread, reply
        if not self._last[2].is_decisive(kind):
            return RuleResult(True, 0.0, "the reference has no finite answer on these inputs")
        sensitivity = SensitivityQuery(
            self._processes.oracle, batch.inputs, slot, answers, seed, FEW_PAIRS
        )
        finding = self._context.judged(
            given, self._context.expected(), kind, sensitivity if spread else None
        )
        return RuleResult(finding.passed, finding.ratio, finding.note)

    def discard(self, batch: Batch) -> None:
        """Release the memory of a batch. All sessions that map it must be closed before."""
        self._processes.oracle.forget(batch.inputs)
        for arena in (batch.inputs, batch.lent, batch.outputs, batch.untrusted):
            arena.close()
