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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import DeviceLock, GiveWay
from cuagent.durations import Stage
from cuagent.events import Emit, Phase, ignore
from cuagent.measure import system_load
from cuagent.measure.roofline.ceilings import describe
from cuagent.measure.timing.baselines import FRESH_IF_OPENED_IN_S, Baselines, warmed
from cuagent.measure.timing.parts import is_final, merge, parts_of
from cuagent.measure.timing.repeats import Repeats
from cuagent.measure.timing.rounds import (
    LOOKS,
    TWIN,
    Round,
    Rounds,
    arm_of,
    is_hopeless,
    leaving,
    may_stop,
    ratios,
    twins,
)
from cuagent.measure.timing.slices import Slices
from cuagent.measure.timing.surroundings import MAX_SLOTS, one_thread, versions
from cuagent.measure.timing.task_floor import TaskFloor
from cuagent.measure.timing.timed_arm import TimedArm, contradiction_of, counted
from cuagent.task import Device
from cuagent.timing import Effort, Ratio, Timing
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
        device_lock: DeviceLock | None = None,
    ) -> None:
        """Create a timer. `device_lock` is for judges of other processes that use the device; the
        timer takes it itself, so its caller must not hold it."""
        self.referee = referee
        self.emit = emit
        self.device_lock = device_lock or DeviceLock()
        self.shared_device = self.device_lock.lock is not None
        self.device = referee.task.device
        self._baselines = Baselines(referee, baselines, emit, self.device_lock.durations)
        lock = self.device_lock
        self._floor = TaskFloor(referee.task, referee.fork_server, self.opening, lock.exclusive)
        self._baselines_fresh = False
        self._prewarmed: tuple[Attempt, Session] | None = None
        """Process of an attempt that may be timed and has not begun."""
        self._twin_ratios: list[float] = []
        """Log ratio of twins in each timing so far."""
        self._baseline_times: dict[str, list[float]] = {}
        """Seconds of each baseline in each round so far."""

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

        Without an attempt the function opens the baselines that stay open, for instance compiled
        ones, but not eager, whose process is as new as the candidate's in every timing. It raises
        OracleLost or ForkServerError. Nothing is prewarmed for a large task.
        """
        if self.referee.large:
            return _open_nothing
        self._set_baselines(baselines)
        if attempt is None:
            return self._open_baselines
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
            self._baselines.await_opening()
            with self.opening():
                return self._baselines.timed_arms(self._baselines.batch_with_fresh_inputs())
        finally:
            self._set_baselines(before)

    @contextmanager
    def opening(self) -> Iterator[GiveWay]:
        """Share the device within the block, in which processes open or outputs are judged.

        The block gets `DeviceLock.shared`'s function, to call while none of its processes works.
        """
        shared = self.device_lock.shared()
        with self.device_lock.durations.of(Stage.OPENING_ARMS), shared as give_way:
            yield give_way

    @property
    def failed(self) -> dict[str, str]:
        """Return the reason for each baseline that does not open or was lost."""
        return self._baselines.failed

    def still_opening(self, baselines: Sequence[str], seconds: float) -> tuple[str, ...]:
        """Return the baselines that the background has not opened after `seconds`."""
        return self._baselines.still_opening(baselines, seconds)

    def nothing_opens(self) -> AbstractContextManager[None]:
        """Return a context in which no baseline opens in the background, after those to time have
        opened. Take a device lock first: a process that is paused may hold it."""
        self._baselines.await_opening()
        return self._baselines.paused()

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
            self._floor.count()

    def _draw_inputs(self) -> None:
        with suppress(OracleLost):
            self._baselines.batch_with_fresh_inputs()

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
                with self.device_lock.durations.of(Stage.OPENING_ARMS):
                    self._baselines.await_opening()
                with self._baselines.paused() if self._pauses_whole else nullcontext():
                    timings.append(self._time(subject, effort))
                if is_final(timings[-1]):
                    break
        finally:
            self._set_baselines(every_baseline)
        return merge(timings)

    @property
    def _pauses_whole(self) -> bool:
        """True if nothing opens in the background from the start of a timing to its end: on a CPU
        it would take the processors of the processes that open for the timing."""
        return self.device is Device.CPU and not self.shared_device

    def _time(self, subject: Subject | None, effort: Effort) -> Timing:
        started = time.perf_counter()
        self._assure_room(subject)
        rounds = Rounds(self.device, self._baseline_times)
        failed, done, every_baseline = "", False, self.baselines
        try:
            while not done:
                self._renew_baselines(effort, time.perf_counter() - started)
                taken = self._round(subject, effort, len(rounds.valid))
                if taken is not None and rounds.add(taken):
                    self._twin_ratios += twins(taken, self.device)
                    elapsed = time.perf_counter() - started
                    done = rounds.refused or self._may_stop(rounds.valid, subject, effort, elapsed)
                    if effort is Effort.RECORD and not done:
                        self._drop_slow_rungs(taken)
                if rounds.process_to_replace:
                    self._baselines.end(rounds.process_to_replace)
        except SessionEnded as ended:
            failed = str(ended)
        seconds = time.perf_counter() - started
        return self._timing(rounds, subject, effort, failed, seconds, every_baseline)

    def _drop_slow_rungs(self, taken: Round) -> None:
        """Stop timing the rungs that cannot be the best one; `_in_parts` restores them."""
        slow = leaving(taken, self.baselines, self.device, self._baseline_times, self._twin_ratios)
        if slow:
            self._set_baselines([name for name in self.baselines if name not in slow])

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
        self,
        rounds: Rounds,
        subject: Subject | None,
        effort: Effort,
        failed: str,
        seconds: float,
        baselines: Sequence[str],
    ) -> Timing:
        """Return the timing of all rounds; `failed` is why the candidate did not finish.

        `baselines` are those of the first round. One that left has an arm but no ratio.
        """
        names = baselines if subject is None else (CANDIDATE, *baselines)
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
            floor=self._floor.of(arms),
            notes=rounds.notes,
            free=self._ratios(valid, None, effort) if subject is not None else {},
            apart=tuple(self._twin_ratios),
        )

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
        session = None
        before = system_load.cpu_times()
        try:
            with self.opening() as give_way:
                batch = self._baselines.batch_with_fresh_inputs()
                give_way()
                if subject is not None:
                    self._begin_candidate(subject[0])
                timed_arms = self._baselines.timed_arms(batch)
                if subject is not None:
                    self.emit(Phase("timing: opening the attempt", passing=True))
                    session = self._candidate(*subject)
                give_way()
                before = system_load.cpu_times()
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

    def _begin_candidate(self, attempt: Attempt) -> None:
        """Fork the candidate's process on a GPU, so that it opens its device while the baselines
        open."""
        if self._prewarmed is None and self.device is Device.CUDA and not self.referee.large:
            waiting = self.referee.processes.waiting(attempt, cores=self._baselines.cores)
            self._prewarmed = attempt, waiting

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
        found = self._ratios(rounds, subject, effort)
        hopeless = subject is not None and is_hopeless(rounds, found, self.device)
        return hopeless or may_stop(len(rounds), found.values()) or elapsed > BUDGET_S[effort]

    def _ratios(
        self, rounds: Sequence[Round], subject: Subject | None, effort: Effort
    ) -> dict[str, Ratio]:
        alone, twin_ratios = subject is None, self._twin_ratios
        return ratios(rounds, self.baselines, effort, self.device, twin_ratios, alone=alone)

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
        slices = Slices(
            self.device_lock, nullcontext if self._pauses_whole else self._baselines.paused
        )
        with slices.held(_stage(timed_arms, effort)):
            return repeats.run(budget, slices.give_way), repeats.slowed


def _stage(timed_arms: Mapping[str, TimedArm], effort: Effort) -> Stage:
    if CANDIDATE not in timed_arms:
        return Stage.LADDER
    return Stage.RECORD_TIMING if effort is Effort.RECORD else Stage.QUICK_TIMING


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
