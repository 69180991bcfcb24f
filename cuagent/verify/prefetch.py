"""The oracle's work for one verdict, asked for before it is needed.

Which inputs there will be and what is right for them hangs on the seeds, and those are drawn once
the source is frozen. So the oracle is at it while a compiler makes the libraries and, on the CPU,
while the candidate computes. On a GPU it rests as soon as there is a candidate, since that one's
use of the device's memory is measured from outside.

Invariant: what is asked for ahead hangs on nothing that a candidate does, and lies in memory that
no worker is lent.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cuagent.task import Device, TaskError
from cuagent.verify.context import FEW_OPPOSITES, LOGIC_SPREAD_S, SPREAD_S, VerifyContext
from cuagent.verify.inputs.kinds import ROUND, SWEEPS, Inputs
from cuagent.verify.oracle.client import (
    OPPOSITES,
    TOLD,
    Answered,
    Oracle,
    OracleLost,
    PerturbationBudget,
    SensitivityQuery,
)
from cuagent.verify.plan import Planned
from cuagent.verify.tally import Trial, When
from cuagent.worker.memory.arena import settle

MOST_POSTED = 100
"""Requests at a time: as many as a socket holds for sure, with their answers."""

FIRST = 2
"""Draws at first, on which a constant may pass still: their spread is wanted."""


@dataclass(frozen=True)
class Step:
    """One request: the inputs of a trial, or what is right for them."""

    trial: Trial
    answer: bool


class OraclePrefetcher:
    """Asks the oracle in the order of the plan, as far as there is room, and tells what it said.

    Raises TaskError, OracleLost. Close it.
    """

    def __init__(
        self,
        context: VerifyContext,
        oracle: Oracle,
        seed: int,
        planned: Sequence[Planned],
        *,
        eager: bool,
    ) -> None:
        """`eager`: whether anything is asked for before it is needed."""
        self.planned = planned
        self._stage, self._oracle, self._seed = context, oracle, seed
        self._eager = eager
        self._steps = deque(_steps(planned, context.lent.count))
        self._rounds = {t: n for n, part in enumerate(planned) for t in part.draws}
        """Number of the round of each trial."""
        self._first = planned[0].trials[:FIRST]
        self._posted: dict[Step, int] = {}
        """Number of the request."""
        self._spread: dict[Trial, bool] = {}
        """Whether the answer to a trial was asked for with its spread."""
        self._slots: dict[Trial, int] = {}
        self._answers: dict[Trial, int] = {}
        self._free = list(range(context.inputs.count))
        self._free_answers = list(range(context.answers["declared"].count))
        self._weighed: dict[int, int] = {}
        """Request for the weights of each round."""
        self._laid = 0
        """Rounds whose weights have been lent."""
        oracle.lend(
            context.inputs, context.prepared_weights, *(context.answers[name] for name in TOLD)
        )
        self._press_on()

    def suspend(self) -> None:
        """There is a candidate now: on a GPU the oracle does nothing from here on but on demand."""
        if self._stage.task.device is Device.CUDA:
            self._eager = False
            self._oracle.await_all()

    def load_weights(self, number: int) -> None:
        """Write the weights of a round to the arena that is lent."""
        if number not in self._weighed:
            self._post_weights(number)
        self._oracle.wait(self._weighed[number])
        context = self._stage
        context.weights.lay(context.prepared_weights, 0, number % context.prepared_weights.count)
        settle(context.weights.device)
        self._laid = max(self._laid, number + 1)
        self._press_on()

    def inputs(self, trial: Trial) -> int:
        """The slot with the inputs of a trial."""
        step = Step(trial, False)
        if step not in self._posted:
            self._post_up_to(step)
        self._oracle.wait(self._posted.pop(step))
        return self._slots[trial]

    def slot(self, trial: Trial) -> int:
        """Where its inputs lie, which have been waited for."""
        return self._slots[trial]

    def answer(self, trial: Trial, *, spread: bool, count: int) -> tuple[Answered, int]:
        """What is right for a trial, and the slot where it lies, with its spread if that is wanted.

        `count` are the perturbations of an earlier verdict, 0 for as many as there is time for.
        """
        step = Step(trial, True)
        if spread and not self._spread.get(trial, True):
            self._take_back(trial)
            self._forget(step)
        if step not in self._posted:
            self._post_up_to(step, spread=spread, count=count)
        reply = self._oracle.wait(self._posted.pop(step))
        self._press_on()
        return Answered.of(reply), self._answers[trial]

    def sensitivity(self, trial: Trial, pairs: int) -> SensitivityQuery:
        """What may be asked about a trial before an error in it is held against anybody."""
        context, slot = self._stage, self._slots[trial]
        ready, target = partial(self._take_back, trial), self._answers[trial]
        oracle, inputs, answers = self._oracle, context.inputs, context.answers
        return SensitivityQuery(oracle, inputs, slot, answers, trial.seed, pairs, ready, target)

    def done(self, trial: Trial) -> None:
        """The memory of a trial is free again."""
        self._free.append(self._slots.pop(trial))
        if trial in self._answers:
            self._free_answers.append(self._answers.pop(trial))
        self._press_on()

    def insert(self, trial: Trial, like: Trial) -> None:
        """Try this one next, which was not planned, with the weights of another."""
        self._rounds[trial] = self._rounds[like]
        self._take_back(trial)
        self._steps.extendleft((Step(trial, True), Step(trial, False)))

    def close(self) -> None:
        """Take back what the oracle has not begun, and wait for what it has."""
        self._steps.clear()
        with contextlib.suppress(OracleLost, TaskError):  # told where it is asked again
            self._oracle.drop()
            self._oracle.await_all()
        self._oracle.ignore_all()

    def _press_on(self) -> None:
        while self._eager and self._steps and len(self._posted) < MOST_POSTED:
            step = self._steps[0]
            if not self._fits(step):
                break
            spread = step.trial in self._first or self._stage.wants_spread(step.trial.kind)
            self._post(self._steps.popleft(), spread=spread, count=0)

    def _fits(self, step: Step) -> bool:
        """One slot of each stays free for what nobody could foresee."""
        if not step.answer:
            return len(self._free) > 1
        room = self._rounds[step.trial] < self._laid + self._stage.prepared_weights.count
        return room and len(self._free_answers) > 1

    def _post_up_to(self, wanted: Step, *, spread: bool = False, count: int = 0) -> None:
        """Ask for a step, and for what comes before it in the plan."""
        while self._steps and wanted in self._steps:
            self._post(self._steps.popleft(), spread=spread, count=count)
        if wanted not in self._posted:
            self._post(wanted, spread=spread, count=count)

    def _post(self, step: Step, *, spread: bool, count: int) -> None:
        context, trial = self._stage, step.trial
        if not step.answer:
            slot = self._slots[trial] = self._free.pop()
            number = self._oracle.post_draw(trial.kind, trial.seed, context.inputs, slot)
        else:
            if self._oracle.weights != (trial.weights, self._seed):
                self._post_weights(self._rounds[trial])
            if trial not in self._answers:
                self._answers[trial] = self._free_answers.pop()
            self._spread[trial] = spread
            number = self._oracle.post_answer(
                context.inputs,
                self._slots[trial],
                context.answers,
                self._answers[trial],
                trial.seed,
                _budget(trial, count, spread=spread),
            )
        self._posted[step] = number

    def _post_weights(self, number: int) -> None:
        context = self._stage
        slot = number % context.prepared_weights.count
        kind = self.planned[number].part.weights
        for other in [n for n in self._weighed if n % context.prepared_weights.count == slot]:
            del self._weighed[other]  # written over
        self._weighed[number] = self._oracle.post_weights(
            kind, self._seed, context.prepared_weights, slot
        )

    def _take_back(self, trial: Trial) -> None:
        """What the oracle has not begun is asked for later; it takes on the weights of a trial."""
        dropped = self._oracle.drop()
        back = [step for step, request in self._posted.items() if request in dropped]
        for step in back:
            self._forget(step)
        self._steps.extendleft(reversed(back))
        for other in [n for n, request in self._weighed.items() if request in dropped]:
            del self._weighed[other]
        if self._oracle.weights != (trial.weights, self._seed):
            self._post_weights(self._rounds[trial])

    def _forget(self, step: Step) -> None:
        self._posted.pop(step, None)
        trial = step.trial
        if step.answer and trial in self._answers:
            self._free_answers.append(self._answers.pop(trial))
        if not step.answer:
            self._free.append(self._slots.pop(trial))


def _steps(planned: Sequence[Planned], together: int) -> list[Step]:
    """In the order in which a course needs them: the inputs of a block, then what is right."""
    steps: list[Step] = []
    for part in planned:
        for trials in (part.trials, part.again, *part.sweeps):
            for begun in range(0, len(trials), together):
                group = trials[begun : begun + together]
                steps += [Step(trial, False) for trial in group]
                # What comes again is judged only where the output is another one.
                steps += [Step(t, True) for t in group if t.when is not When.AGAIN]
    return steps


def _budget(trial: Trial, count: int, *, spread: bool) -> PerturbationBudget:
    opposites = FEW_OPPOSITES if trial.kind in SWEEPS else OPPOSITES
    decided = trial.kind in ROUND
    return PerturbationBudget(
        _perturbation_seconds(trial) if spread else None, opposites, count, decided
    )


def _perturbation_seconds(trial: Trial) -> float:
    """Seconds that the oracle may perturb."""
    if trial.kind in SWEEPS:
        return 0.0
    thorough = trial.kind is Inputs.NORMAL and trial.when is not When.AGAIN
    return SPREAD_S if thorough else LOGIC_SPREAD_S
