"""Send a verdict's requests to the oracle before the referee needs the results.

The seeds determine all inputs and their right answers, and they are drawn once the source is
frozen. So the oracle works while a compiler builds the libraries and, on the CPU, while the
candidate computes. On a GPU no request is sent ahead while a candidate runs, because the
candidate's use of device memory is measured from outside.

Invariant: a prefetched request depends on nothing that a candidate does, and its results are in
memory that no worker maps.
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
    TIE_PAIRS,
    AnswerInfo,
    Oracle,
    PerturbationBudget,
    SensitivityQuery,
)
from cuagent.verify.oracle.process import OracleLost
from cuagent.verify.plan import PlannedRound
from cuagent.verify.tally import Trial, When
from cuagent.worker.memory.arena import synchronize

MAX_OPEN_REQUESTS = 100
"""Number of unanswered requests at which no further request is sent ahead.

The limit ensures that requests and answers fit the socket's buffers.
"""

FIRST_DRAWS = 2
"""Number of draws at the start of a verdict that always need the spread, because a constant answer
may still pass on them."""


@dataclass(frozen=True)
class Step:
    """One request to the oracle: the inputs of a trial or, if `answer`, its right answer."""

    trial: Trial
    answer: bool


class OraclePrefetcher:
    """Sends a verdict's requests to the oracle in the order of the plan, as far as memory allows.

    The owner must call `close`. Methods raise TaskError, OracleLost.
    """

    def __init__(
        self,
        context: VerifyContext,
        oracle: Oracle,
        seed: int,
        planned: Sequence[PlannedRound],
        *,
        eager: bool,
    ) -> None:
        """Create a prefetcher for the rounds in `planned`; `seed` is the seed of the weights.

        With `eager` requests are sent before their results are needed.
        """
        self.planned = planned
        self._context, self._oracle, self._seed = context, oracle, seed
        self._eager = eager
        self._steps = deque(_steps(planned, context.lent.count))
        self._rounds = {
            t: n for n, planned_round in enumerate(planned) for t in planned_round.draws
        }
        """Index of the round that each trial belongs to."""
        self._first_draws = planned[0].trials[:FIRST_DRAWS]
        self._sent: dict[Step, int] = {}
        """Request number of each step that was sent and whose result was not yet used."""
        self._spread: dict[Trial, bool] = {}
        """True for each trial whose answer was requested with its spread."""
        self._slots: dict[Trial, int] = {}
        self._answers: dict[Trial, int] = {}
        self._free = list(range(context.inputs.count))
        self._free_answers = list(range(context.answers["declared"].count))
        self._weight_requests: dict[int, int] = {}
        """Number of the request for each round's weights."""
        self._rounds_loaded = 0
        """Number of rounds whose weights were copied to the worker's arena."""
        oracle.lend(
            context.inputs,
            context.prepared_weights,
            *oracle.answer_arenas(context.answers),
        )
        self._send_ahead()

    def suspend(self) -> None:
        """On a GPU: send no more requests ahead, and wait for the open ones, before a candidate
        runs.
        """
        if self._context.task.device is Device.CUDA:
            self._eager = False
            self._oracle.await_all()

    def load_weights(self, number: int) -> None:
        """Copy the weights of round `number` to the arena that the worker maps."""
        if number not in self._weight_requests:
            self._post_weights(number)
        self._oracle.wait(self._weight_requests[number])
        context = self._context
        context.weights.copy_slot(
            context.prepared_weights, 0, number % context.prepared_weights.count
        )
        synchronize(context.weights.device)
        self._rounds_loaded = max(self._rounds_loaded, number + 1)
        self._send_ahead()

    def inputs(self, trial: Trial) -> int:
        """Wait until the oracle has drawn a trial's inputs; return their slot."""
        step = Step(trial, False)
        if step not in self._sent:
            self._send_up_to(step)
        self._oracle.wait(self._sent.pop(step))
        return self._slots[trial]

    def slot(self, trial: Trial) -> int:
        """Return the slot of a trial's inputs, for which `inputs` has waited before."""
        return self._slots[trial]

    def answer(self, trial: Trial, *, spread: bool, count: int) -> tuple[AnswerInfo, int]:
        """Wait for the oracle's answer to a trial; return its reply and the slot with the right
        outputs.

        With `spread` the slot also contains the spread. `count` is the number of perturbations in
        an earlier verdict that is repeated, or 0 to let a time limit decide.
        """
        step = Step(trial, True)
        if spread and not self._spread.get(trial, True):
            self._cancel_pending(trial)
            self._forget(step)
        if step not in self._sent:
            self._send_up_to(step, spread=spread, count=count)
        reply = self._oracle.wait(self._sent.pop(step))
        self._send_ahead()
        return AnswerInfo.from_json(reply), self._answers[trial]

    def sensitivity(self, trial: Trial, pairs: int) -> SensitivityQuery:
        """Return the sensitivity query for a trial, with `pairs` perturbation pairs; it is not sent
        yet.

        The referee runs it before an error in this trial rejects the candidate.
        """
        context, slot = self._context, self._slots[trial]
        ready, target = partial(self._cancel_pending, trial), self._answers[trial]
        oracle, inputs, answers = self._oracle, context.inputs, context.answers
        return SensitivityQuery(oracle, inputs, slot, answers, trial.seed, pairs, ready, target)

    def done(self, trial: Trial) -> None:
        """Free the slots of a trial and send further requests."""
        self._free.append(self._slots.pop(trial))
        if trial in self._answers:
            self._free_answers.append(self._answers.pop(trial))
            self._oracle.release(self._context.answers)
        self._send_ahead()

    def insert(self, trial: Trial, like: Trial) -> None:
        """Add an unplanned trial as the next one; it uses the weights of the trial `like`."""
        self._rounds[trial] = self._rounds[like]
        self._cancel_pending(trial)
        self._steps.extendleft((Step(trial, True), Step(trial, False)))

    def close(self) -> None:
        """Cancel the requests that the oracle has not begun, and wait for the others."""
        self._steps.clear()
        with contextlib.suppress(OracleLost, TaskError):  # the next request raises it again
            self._oracle.drop()
            self._oracle.await_all()
        self._oracle.ignore_all()

    def _send_ahead(self) -> None:
        """If prefetching is on, send the next requests of the plan until the free slots are
        used.
        """
        while self._eager and self._steps and len(self._sent) < MAX_OPEN_REQUESTS:
            step = self._steps[0]
            if not self._fits(step):
                break
            spread = step.trial in self._first_draws or self._context.needs_spread(step.trial.kind)
            self._post(self._steps.popleft(), spread=spread, count=0)

    def _fits(self, step: Step) -> bool:
        """Return True if a slot is free for the step's result.

        One slot for inputs and one for answers stay reserved for unplanned trials.
        """
        if not step.answer:
            return len(self._free) > 1
        room = self._rounds[step.trial] < self._rounds_loaded + self._context.prepared_weights.count
        return room and len(self._free_answers) > 1

    def _send_up_to(self, wanted: Step, *, spread: bool = False, count: int = 0) -> None:
        """Send the request `wanted`, and before it all earlier requests of the plan."""
        while self._steps and wanted in self._steps:
            self._post(self._steps.popleft(), spread=spread, count=count)
        if wanted not in self._sent:
            self._post(wanted, spread=spread, count=count)

    def _post(self, step: Step, *, spread: bool, count: int) -> None:
        context, trial = self._context, step.trial
        if not step.answer:
            slot = self._slots[trial] = self._free.pop()
            number = self._oracle.post_draw(
                trial.kind, trial.seed, context.inputs, slot, trial.step
            )
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
        self._sent[step] = number

    def _post_weights(self, number: int) -> None:
        context = self._context
        slot = number % context.prepared_weights.count
        kind = self.planned[number].round.weights
        for other in [
            n for n in self._weight_requests if n % context.prepared_weights.count == slot
        ]:
            del self._weight_requests[other]  # its slot is overwritten
        self._weight_requests[number] = self._oracle.post_weights(
            kind, self._seed, context.prepared_weights, slot
        )

    def _cancel_pending(self, trial: Trial) -> None:
        """Cancel the requests that the oracle has not begun, and put them back into the plan.

        Then request the weights of `trial` if the oracle has other weights loaded.
        """
        dropped = self._oracle.drop()
        cancelled = [step for step, request in self._sent.items() if request in dropped]
        for step in cancelled:
            self._forget(step)
        self._steps.extendleft(reversed(cancelled))
        for other in [n for n, request in self._weight_requests.items() if request in dropped]:
            del self._weight_requests[other]
        if self._oracle.weights != (trial.weights, self._seed):
            self._post_weights(self._rounds[trial])

    def _forget(self, step: Step) -> None:
        self._sent.pop(step, None)
        trial = step.trial
        if step.answer and trial in self._answers:
            self._free_answers.append(self._answers.pop(trial))
        if not step.answer:
            self._free.append(self._slots.pop(trial))


def _steps(planned: Sequence[PlannedRound], block_size: int) -> list[Step]:
    """Return the requests in the order in which the referee needs them.

    For each block of calls: the inputs of all draws, then their right answers.
    """
    steps: list[Step] = []
    for planned_round in planned:
        for trials in (planned_round.trials, planned_round.repeats, *planned_round.sweeps):
            for start in range(0, len(trials), block_size):
                group = trials[start : start + block_size]
                steps += [Step(trial, False) for trial in group]
                # A repeated draw needs an answer only if its output differs from the earlier one.
                # The answer is then requested out of turn.
                steps += [Step(t, True) for t in group if t.when is not When.AGAIN]
    return steps


def _budget(trial: Trial, count: int, *, spread: bool) -> PerturbationBudget:
    opposites = FEW_OPPOSITES if trial.kind in SWEEPS else TIE_PAIRS
    check_decisions = trial.kind in ROUND
    return PerturbationBudget(
        _perturbation_seconds(trial) if spread else None, opposites, count, check_decisions
    )


def _perturbation_seconds(trial: Trial) -> float:
    """Return the seconds that the oracle may spend on measuring a trial's spread."""
    if trial.kind in SWEEPS:
        return 0.0
    thorough = trial.kind is Inputs.NORMAL and trial.when is not When.AGAIN
    return SPREAD_S if thorough else LOGIC_SPREAD_S
