"""Run one round of a timing: open a fresh process for the candidate, and run the repeats of all
arms."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from cuagent.arms import CANDIDATE
from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import DeviceLock, Sharing
from cuagent.durations import Stage
from cuagent.events import Emit, Phase
from cuagent.measure import system_load
from cuagent.measure.launches import graphs_may_gain
from cuagent.measure.timing.baselines import Baselines, warmed
from cuagent.measure.timing.candidate_process import BUDGET_S, CandidateProcess
from cuagent.measure.timing.in_a_row import time_in_a_row
from cuagent.measure.timing.repeats import Repeats
from cuagent.measure.timing.rounds import LOOKS, TWIN, Round
from cuagent.measure.timing.slices import Slices
from cuagent.measure.timing.surroundings import MAX_SLOTS, one_thread
from cuagent.measure.timing.task_floor import TaskFloor
from cuagent.measure.timing.timed_arm import TimedArm, contradiction_of, counted
from cuagent.task import Device
from cuagent.timing import Effort
from cuagent.verify.batch import Batch
from cuagent.verify.referee import Referee
from cuagent.worker import SessionEnded

ROUND_S = 1.5
"""Longest time in seconds for the repeats of one round of a record timing. Processes differ more
than the repeats of one process, so longer rounds gain little."""
MAX_CALLS = 60 * MAX_SLOTS
"""Largest number of calls of the candidate in one round."""

Subject = tuple[Attempt, Build]
"""Candidate to time: its attempt and build. A parameter of this type may be None to time only the
baselines."""


@dataclass(frozen=True)
class RoundRunner:
    """Runs the rounds of all timings that one timer makes."""

    referee: Referee
    baselines: Baselines
    candidate: CandidateProcess
    floor: TaskFloor
    device_lock: DeviceLock
    opening: Callable[[], AbstractContextManager[Sharing]]
    """Function that returns the context in which processes are opened (`Timer.opening`)."""
    emit: Emit

    @property
    def device(self) -> Device:
        """Return the device of the task."""
        return self.referee.task.device

    @property
    def wakes(self) -> bool:
        """True if a block follows a call that is not timed (`Repeats.wake`): on a GPU, if the
        host's work may show in the times."""
        if self.device is not Device.CUDA or self.referee.large:
            return False
        work = self.floor.counted
        return graphs_may_gain(self.referee.facts.call_s, work.operators if work else {})

    @property
    def pauses_whole(self) -> bool:
        """True if processes in the background stay stopped during a whole timing.

        On a CPU they would compete for processors with the processes that open for the timing.
        """
        return self.device is Device.CPU and self.device_lock.lock is None

    def run(self, subject: Subject | None, effort: Effort, rounds_done: int) -> Round | None:
        """Time one round. Returns None if a trusted process was lost; the caller must then repeat
        the round."""
        session = None
        before = system_load.cpu_times()
        try:
            with self.opening() as give_way:
                self.floor.prepare(give_way)
                batch = self.baselines.batch_with_fresh_inputs()
                give_way()
                if subject is not None:
                    self.candidate.begin(subject[0])
                timed_arms = self.baselines.timed_arms(batch, give_way, self.candidate.waiting)
                if subject is not None:
                    self.emit(Phase("timing: opening the attempt", passing=True))
                    session = self.candidate.open(*subject, give_way)
                give_way()
                before = system_load.cpu_times()
                if session is not None:
                    session.time_limit_s = self.referee.time_limit_s(MAX_CALLS)
                    timed_arm = warmed(CANDIDATE, session, batch, time.perf_counter())
                    timed_arms = {CANDIDATE: timed_arm, **timed_arms}
            self.emit(
                Phase(_progress(effort, rounds_done, len(timed_arms.keys() - {TWIN})), passing=True)
            )
            self.baselines.note_timed(timed_arms)
            with one_thread(self.device):
                wrong, slowed = self._repeats(timed_arms, batch, effort) if timed_arms else ("", 0)
            left = session is not None and system_load.threads_outside(
                session.pid, self.baselines.cores
            )
            outside_cores = "it left the processors that all arms are timed on" if left else ""
            busy = system_load.others_share(before, system_load.cpu_times())
        except SessionEnded as ended:
            if (session is not None and session.closed) or not self.baselines.drop_ended(
                str(ended)
            ):
                raise
            return None
        finally:
            if session is not None:
                session.close()
        contradiction = contradiction_of(timed_arms, self.device)
        return Round(
            timed_arms,
            counted(timed_arms, self.device),
            wrong,
            outside_cores,
            contradiction,
            busy,
            slowed,
        )

    def _repeats(
        self, timed_arms: Mapping[str, TimedArm], batch: Batch, effort: Effort
    ) -> tuple[str, int]:
        """Time the arms until the budget of this effort is spent.

        Returns a message if an output of the candidate was wrong, else "", and the number of
        repeats that are used although the GPU throttled.
        """
        # The last slot was for warming up; if it is the only one, it is drawn again.
        slots = range(max(1, batch.inputs.count - 1))
        budget = BUDGET_S[effort]
        if effort is Effort.RECORD:
            budget = min(budget / 10, ROUND_S)
        draw_s, glance = self.baselines.draw_s, effort is Effort.GLANCE
        repeats = Repeats(self.referee, batch, timed_arms, slots, draw_s, glance, wakes=self.wakes)
        slices = Slices(
            self.device_lock, nullcontext if self.pauses_whole else self.baselines.paused
        )
        with slices.held(_stage(timed_arms, effort)):
            wrong = repeats.run(budget, slices.give_way)
            if self.device is Device.CUDA and not (glance or batch.lean or wrong):
                time_in_a_row(timed_arms, batch, slots[0])
            return wrong, repeats.slowed


def _stage(timed_arms: Mapping[str, TimedArm], effort: Effort) -> Stage:
    if CANDIDATE not in timed_arms:
        return Stage.LADDER
    return Stage.RECORD_TIMING if effort is Effort.RECORD else Stage.QUICK_TIMING


def _progress(effort: Effort, rounds_done: int, models: int) -> str:
    """Return the progress message for one round."""
    text = f"timing {models} interleaved models"
    last = LOOKS.rounds[-1]
    return f"{text}: round {rounds_done + 1} of at most {last}" if effort is Effort.RECORD else text
