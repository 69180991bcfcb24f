"""Time an attempt against the baselines: interleaved arms, two clocks, unseen inputs.

Each repeat gives every arm (the candidate and the baselines, each in a process) one block of calls
on the same input sets, in a random order. Two blocks of one repeat are a pair, so drift affects
both (`repeats.py`). The worker's clock gives the fine number; the referee's wall clock around the
block limits how little may count (`timed_arm.py`). The baselines' processes stay warm between
timings (`baselines.py`). docs/concepts/timing.md has the formulas and the error model.

Invariant: nothing that the candidate reports can make it faster than the wall clock allows, and no
honest candidate is refused because the machine is busy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.events import Emit, Phase, ignore
from cuagent.measure import system_load
from cuagent.measure.roofline.ceilings import ceilings, describe
from cuagent.measure.roofline.count import count
from cuagent.measure.roofline.model import Roofline, Work
from cuagent.measure.timing.baselines import FRESH_IF_OPENED_IN_S, Baselines, warmed
from cuagent.measure.timing.parts import is_final, merge, parts_of
from cuagent.measure.timing.repeats import Repeats
from cuagent.measure.timing.rounds import LOOKS, TWIN, Round, Rounds, arm_of, may_stop, ratio, twins
from cuagent.measure.timing.surroundings import MAX_SLOTS, one_thread, versions
from cuagent.measure.timing.timed_arm import TimedArm, contradiction_of, counted
from cuagent.task import Device, TaskError
from cuagent.timing import Arm, Effort, Floor, Ratio, Timing
from cuagent.verify.batch import Batch
from cuagent.verify.oracle.client import OracleLost
from cuagent.verify.referee import Referee
from cuagent.worker import ForkServerError, Session, SessionEnded

BASELINES = (EAGER, COMPILE)
BUDGET_S = {Effort.GLANCE: 0.3, Effort.QUICK: 1.5, Effort.RECORD: 30.0}
"""Seconds for the repeats: of the one round of a quick timing, of all rounds of a record timing.
The smallest number of repeats runs in any case."""
ROUND_S = 1.5
"""Most seconds for the repeats of one round of a record timing. Processes differ more than the
repeats of one process, so longer rounds gain little."""
MAX_CALLS = 60 * MAX_SLOTS
"""Largest number of a candidate's calls in one round."""

OpenProcesses = Callable[[], None]
"""Opens the processes of a timing."""
Subject = tuple[Attempt, Build]
"""Candidate to time against the baselines; None times the baselines alone."""


def time_arms(
    referee: Referee,
    attempt: Attempt,
    build: Build,
    baselines: Sequence[str] = BASELINES,
    effort: Effort = Effort.QUICK,
    emit: Emit = ignore,
) -> Timing:
    """Time an accepted attempt once. A `Timer` that stays open compiles the baselines only once."""
    with Timer(referee, baselines, emit) as timer:
        return timer.time(attempt, build, effort)


class Timer:
    """Times attempts against baselines that stay open between timings. A context manager.

    `time` needs no other call before it. `prewarm` moves the opening of processes to an earlier
    moment, and `release` ends those that the next timing does not need.
    """

    def __init__(
        self,
        referee: Referee,
        baselines: Sequence[str] = BASELINES,
        emit: Emit = ignore,
        *,
        shared_device: bool = False,
    ) -> None:
        """Create a timer; `shared_device`: True if judges of other processes use the device."""
        self.referee = referee
        self.emit = emit
        self.shared_device = shared_device
        self.device = referee.task.device
        self._baselines = Baselines(referee, baselines, emit)
        self._baselines_fresh = False
        self._prewarmed: tuple[Attempt, Session] | None = None
        """Process of an attempt that may be timed and has not begun."""
        self._twin_ratios: list[float] = []
        """Log ratio of twins in each timing so far."""
        self._work: Work | None = None
        self._unit = ""
        self._baseline_times: dict[str, list[float]] = {}
        """Seconds of each baseline in each round so far."""
        self._count_failed = False
        self._roofline: Roofline | None = None
        self._ceilings_remeasured = False

    def time(
        self,
        attempt: Attempt,
        build: Build,
        effort: Effort = Effort.QUICK,
        baselines: Sequence[str] | None = None,
    ) -> Timing:
        """Time one accepted attempt against `baselines`, or those of the last call if None.

        A candidate's failure is in its `Arm.failed`. Raises TooLarge if the models do not fit into
        memory.
        """
        self._set_baselines(baselines)
        return self._in_parts((attempt, build), effort)

    def compare(
        self, effort: Effort = Effort.QUICK, baselines: Sequence[str] | None = None
    ) -> Timing:
        """Time the baselines alone, in one interleaved run. Ratios are eager's time over theirs."""
        self._set_baselines(baselines)
        return self._in_parts(None, effort)

    def prewarm(
        self, attempt: Attempt | None = None, baselines: Sequence[str] | None = None
    ) -> OpenProcesses:
        """Prepare a timing of `attempt`; return the function that opens its processes.

        The inputs that processes warm up on are drawn now, which needs an idle oracle; the returned
        function does not. It raises no failure of the attempt's processes, because `time` opens
        them again and reports it. Nothing opens before the first timing: torch.compile may take
        long, and a compiler's error would have to wait for it.

        On a shared device the function opens and draws all that a timing needs, and waits until the
        attempt's process has its device, so that nothing opens while the device is held
        exclusively.

        Without an attempt the function opens the baselines that stay open, for instance compiled
        ones, but not eager, whose process is as new as the candidate's in every timing. It raises
        OracleLost or ForkServerError. Nothing is prewarmed for a large task.
        """
        if self.referee.large:
            return _open_nothing
        self._set_baselines(baselines)
        if attempt is None:
            return self._open_baselines
        if self.shared_device:
            return partial(self._open_and_wait, attempt)
        if not self._baselines.were_opened:
            return _open_nothing
        self._draw_inputs()
        return partial(self._open_prewarmed, attempt)

    def release(self, baselines: Sequence[str] | None = None) -> None:
        """End the processes that a next timing against `baselines` does not need.

        These are other baselines and a prewarmed attempt. On a shared device eager is one too: it
        opens afresh for each timing, and every open context on a GPU makes the creation of the next
        ones slower, in any process. A large task keeps nothing.
        """
        self._discard_prewarmed()
        self._set_baselines(baselines)
        if self.referee.large:
            self.close()
        elif self.shared_device:
            self._baselines.end(EAGER)
            self._baselines_fresh = False

    @property
    def baselines(self) -> tuple[str, ...]:
        """Return the baselines that an attempt is timed against."""
        return self._baselines.names

    def _set_baselines(self, baselines: Sequence[str] | None) -> None:
        """Set the baselines, unless None, and end the processes of all others."""
        if baselines is not None:
            self._baselines.set_baselines(baselines)

    def keep(self, baselines: Sequence[str]) -> None:
        """Keep the processes of these baselines even while others are timed."""
        self._baselines.keep(() if self.referee.large else baselines)

    def open_ahead(self, baselines: Sequence[str]) -> None:
        """Begin to open baselines in the background.

        Does nothing for a large task, nor on a shared device, where another judge may be timing.
        """
        names = [name for name in baselines if name != EAGER]
        if names and not self.referee.large and not self.shared_device:
            self._baselines.open_ahead(names)

    def open_untimed(self, baselines: Sequence[str]) -> dict[str, TimedArm]:
        """Open these baselines without timing them; those that fail are left out."""
        before = self.baselines
        self._set_baselines(baselines)
        self.keep((*before, *baselines))
        try:
            with self.nothing_opens():
                return self._baselines.timed_arms(self._baselines.batch_with_fresh_inputs())
        finally:
            self._set_baselines(before)

    @property
    def failed(self) -> dict[str, str]:
        """Return the reason for each baseline that does not open or was lost."""
        return self._baselines.failed

    def still_opening(self, baselines: Sequence[str], seconds: float) -> tuple[str, ...]:
        """Return the baselines that the background has not opened after `seconds`."""
        return self._baselines.still_opening(baselines, seconds)

    def nothing_opens(self) -> AbstractContextManager[None]:
        """Return a context in which no baseline opens in the background."""
        return self._baselines.nothing_opens()

    def opening_paused(self, needed: Sequence[str]) -> AbstractContextManager[None]:
        """Return a context in which no baseline opens in the background, unless one of those that
        are `needed` in it still does."""
        return self._baselines.opening_paused(needed)

    def _open_baselines(self) -> None:
        """Open the baselines that stay open, without timing them.

        On a shared device the task's work is counted too. Otherwise the first timing counts it
        while all other judges of the device wait.
        """
        every_baseline = self.baselines
        self._set_baselines([name for name in every_baseline if name != EAGER])
        try:
            self._baselines.open_together()
            self._baselines.timed_arms(self._baselines.batch_with_fresh_inputs())
        finally:
            self._set_baselines(every_baseline)
        if self.shared_device:
            self._count()

    def _draw_inputs(self) -> None:
        with suppress(OracleLost):
            self._baselines.batch_with_fresh_inputs()

    def _open_and_wait(self, attempt: Attempt) -> None:
        if not self._baselines.were_opened:
            self._open_baselines()
        self._draw_inputs()
        self._open_prewarmed(attempt)
        self._await_prewarmed()

    def _open_prewarmed(self, attempt: Attempt) -> None:
        baselines = self._baselines
        self._discard_prewarmed()
        with suppress(ForkServerError, OracleLost):
            self._prewarmed = (
                attempt,
                self.referee.processes.waiting(attempt, cores=baselines.cores),
            )
            if not self._baselines_fresh:
                baselines.renew(_opening_limit_s(self.device, Effort.QUICK, 0.0))
                baselines.timed_arms(baselines.batch)
                self._baselines_fresh = True

    def _await_prewarmed(self) -> None:
        """Wait until the attempt's process has opened its device."""
        if self._prewarmed is not None:
            try:
                self._prewarmed[1].await_ready()
            except SessionEnded:
                self._discard_prewarmed()  # if a new process fails too, `time` reports it

    def _count(self) -> Work | None:
        """Return the task's work, counted once; None if counting failed.

        Counting runs in a separate process for some seconds. It may fail because other users of the
        device hold memory. The first timing counts if nothing did before.
        """
        if self._work is None:
            with suppress(TaskError):
                self._work, self._unit = count(self.referee.task, self.referee.fork_server)
        return self._work

    def opened(self) -> dict[str, TimedArm]:
        """Return the baselines with a warm process."""
        return self._baselines.opened()

    def _in_parts(self, subject: Subject | None, effort: Effort) -> Timing:
        """Time in one part, unless the device has no room for all arms at the same time
        (`parts.py`)."""
        self.referee.make_room()
        every_baseline, timings = self.baselines, list[Timing]()
        try:
            for part in parts_of(self.referee, every_baseline, subject is not None):
                self._set_baselines(part)
                if not self.referee.large:
                    self._baselines.open_together()
                with self.nothing_opens():
                    timings.append(self._time(subject, effort))
                if is_final(timings[-1]):
                    break
        finally:
            self._set_baselines(every_baseline)
        return merge(timings)

    def _time(self, subject: Subject | None, effort: Effort) -> Timing:
        started = time.perf_counter()
        self._assure_room(subject)
        rounds = Rounds(self.device, self._baseline_times)
        failed, done = "", False
        try:
            while not done:
                self._renew_baselines(effort, time.perf_counter() - started)
                taken = self._round(subject, effort, len(rounds.valid))
                if taken is not None and rounds.add(taken):
                    self._twin_ratios += twins(taken, self.device)
                    elapsed = time.perf_counter() - started
                    done = rounds.refused or self._may_stop(rounds.valid, subject, effort, elapsed)
                if rounds.process_to_replace:
                    self._baselines.end(rounds.process_to_replace)
        except SessionEnded as ended:
            failed = str(ended)
        return self._timing(rounds, subject, effort, failed, time.perf_counter() - started)

    def _assure_room(self, subject: Subject | None) -> None:
        """Raise TooLarge if the free memory does not hold all arms at the same time."""
        if not self._baselines.warm:
            room, models = self.referee.room, len(self.baselines) + (subject is not None)
            room.assure(self.referee.task, f"a timing of {models} models", room.timing(models))

    def _renew_baselines(self, effort: Effort, elapsed: float) -> None:
        """Replace the processes of baselines that open quickly, unless `prewarm` did."""
        if not self._baselines_fresh:
            self._baselines.renew(_opening_limit_s(self.device, effort, elapsed))
        self._baselines_fresh = False

    def _timing(
        self, rounds: Rounds, subject: Subject | None, effort: Effort, failed: str, seconds: float
    ) -> Timing:
        """Return the timing of all rounds; `failed` is why the candidate did not finish."""
        names = self.baselines if subject is None else (CANDIDATE, *self.baselines)
        why = self._baselines.failed | {CANDIDATE: failed}
        arms = tuple(arm_of(name, rounds.valid, why.get(name, ""), self.device) for name in names)
        valid = [] if failed or rounds.refused else rounds.valid
        return Timing(
            arms=arms,
            ratios=self._ratios(valid, subject, effort),
            effort=effort,
            device=describe(self.referee.task.device),
            seconds=seconds,
            contradiction=rounds.contradiction,
            wrong=rounds.wrong,
            versions=versions(),
            busy=rounds.busy,
            floor=self._floor(arms),
            notes=rounds.notes,
            free=self._ratios(valid, None, effort) if subject is not None else {},
            apart=tuple(self._twin_ratios),
        )

    def _floor(self, arms: Sequence[Arm]) -> Floor | None:
        """Return the task's floor; measure its ceilings again if an arm is below it."""
        if self._roofline is None and not self._count_failed:
            if (work := self._count()) is None:
                self._count_failed = True
            else:
                self._roofline = Roofline(work, ceilings(self.device), self._unit)
        if self._roofline is None:
            return None
        quickest = min((arm.median for arm in arms if arm.samples), default=float("inf"))
        beaten = self._roofline.beaten(quickest) and not self._ceilings_remeasured
        # A candidate is not suspected because of ceilings measured while the memory was slow.
        if beaten or self._roofline.suspect(quickest):
            self._ceilings_remeasured = True
            ceilings_again = ceilings(self.device, remeasure=True)
            self._roofline = replace(self._roofline, ceilings=ceilings_again)
        return self._roofline.timing_floor

    @property
    def batch(self) -> Batch:
        """Return the batch that the warm arms use."""
        return self._baselines.batch

    def close(self) -> None:
        """End the baselines' processes and free the memory. Idempotent."""
        self._discard_prewarmed()
        self._baselines_fresh = False
        self._baselines.close()

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one round: a fresh process for the candidate, and the repeats

    def _round(self, subject: Subject | None, effort: Effort, rounds_done: int) -> Round | None:
        """Time one round. None if a trusted process was lost: the round is then repeated."""
        batch = self._baselines.batch_with_fresh_inputs()
        timed_arms = self._baselines.timed_arms(batch)
        if subject is not None:
            self.emit(Phase("timing: opening the attempt", passing=True))
        session = None if subject is None else self._candidate(*subject)
        before = system_load.cpu_times()
        try:
            if session is not None:
                session.time_limit_s = self.referee.time_limit_s(MAX_CALLS)
                timed_arm = warmed(CANDIDATE, session, batch, time.perf_counter())
                timed_arms = {CANDIDATE: timed_arm, **timed_arms}
            self.emit(
                Phase(_progress(effort, rounds_done, len(timed_arms.keys() - {TWIN})), passing=True)
            )
            with one_thread(self.device):
                wrong, slowed = self._repeats(timed_arms, batch, effort) if timed_arms else ("", 0)
            left = session is not None and system_load.threads_outside(
                session.pid, self._baselines.cores
            )
            outside_cores = "it left the processors that all arms are timed on" if left else ""
            busy = system_load.others_share(before, system_load.cpu_times())
        except SessionEnded as ended:
            if (session is not None and session.closed) or not self._baselines.drop_ended(
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

    def _candidate(self, attempt: Attempt, build: Build) -> Session:
        """Return the candidate's session: the prewarmed process of this attempt, else a new one."""
        prewarmed = None
        if self._prewarmed is not None and self._prewarmed[0] == attempt:
            (_, prewarmed), self._prewarmed = self._prewarmed, None
        return self.referee.processes.candidate(attempt, build, self._baselines.cores, prewarmed)

    def _discard_prewarmed(self) -> None:
        """End the prewarmed process of an attempt that will not be timed."""
        if self._prewarmed is not None:
            self._prewarmed[1].close()
            self._prewarmed = None

    def _may_stop(
        self,
        rounds: Sequence[Round],
        subject: Subject | None,
        effort: Effort,
        elapsed: float,
    ) -> bool:
        if effort is not Effort.RECORD or len(rounds) < LOOKS.rounds[0]:
            return effort is not Effort.RECORD
        ratios = self._ratios(rounds, subject, effort).values()
        return may_stop(len(rounds), ratios) or elapsed > BUDGET_S[effort]

    def _ratios(
        self, rounds: Sequence[Round], subject: Subject | None, effort: Effort
    ) -> dict[str, Ratio]:
        """Return the ratio of each baseline to the candidate; without a candidate, of eager to each
        baseline."""
        valid = [
            name
            for name in self.baselines
            if rounds and all(taken.counted.get(name) for taken in rounds)
        ]
        if subject is not None:
            return {
                n: ratio(rounds, n, CANDIDATE, effort, self.device, self._twin_ratios)
                for n in valid
            }
        return {
            n: ratio(rounds, EAGER, n, effort, self.device, self._twin_ratios)
            for n in valid
            if EAGER in valid and n != EAGER
        }

    def _repeats(
        self, timed_arms: Mapping[str, TimedArm], batch: Batch, effort: Effort
    ) -> tuple[str, int]:
        """Time the arms until the budget is spent.

        Returns a message if an output of the candidate was wrong, else "", and the number of
        repeats that count although the GPU throttled.
        """
        # The last slot was for warming up; if it is the only one, it is drawn again.
        slots = range(max(1, batch.inputs.count - 1))
        budget = BUDGET_S[effort]
        if effort is Effort.RECORD:
            budget = min(budget / 10, ROUND_S)
        draw_s, glance = self._baselines.draw_s, effort is Effort.GLANCE
        repeats = Repeats(self.referee, batch, timed_arms, slots, draw_s, glance)
        return repeats.run(budget), repeats.slowed


def _progress(effort: Effort, rounds_done: int, models: int) -> str:
    """Return the progress message of one round."""
    text = f"timing {models} interleaved models"
    last = LOOKS.rounds[-1]
    return f"{text}: round {rounds_done + 1} of at most {last}" if effort is Effort.RECORD else text


def _open_nothing() -> None:
    """Open no process, where `prewarm` has nothing to prepare."""


def _opening_limit_s(device: Device, effort: Effort, elapsed: float) -> float:
    """Return the seconds that opening a baseline may take if it is to get a fresh process.

    `elapsed`: seconds since the timing began.
    """
    if effort is Effort.RECORD and elapsed < BUDGET_S[effort] / 2:
        return BUDGET_S[effort] / 6
    return FRESH_IF_OPENED_IN_S[device]
