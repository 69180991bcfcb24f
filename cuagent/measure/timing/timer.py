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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial

from cuagent.arms import CANDIDATE, COMPILE, EAGER
from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import ALONE, DeviceLock, Sharing
from cuagent.durations import Stage
from cuagent.events import Emit, ignore
from cuagent.measure.roofline.ceilings import describe
from cuagent.measure.roofline.count import count_ahead
from cuagent.measure.timing.ahead import Patience
from cuagent.measure.timing.baselines import Baselines
from cuagent.measure.timing.candidate_process import BUDGET_S, CandidateProcess
from cuagent.measure.timing.parts import fit_together, is_final, merge, parts_of
from cuagent.measure.timing.round_runner import RoundRunner, Subject
from cuagent.measure.timing.rounds import (
    CLEAR_ROUNDS,
    LOOKS,
    Round,
    Rounds,
    arm_of,
    hopeless_rungs,
    is_decided,
    ratios,
    twins,
)
from cuagent.measure.timing.surroundings import versions
from cuagent.measure.timing.task_floor import TaskFloor
from cuagent.measure.timing.timed_arm import TimedArm
from cuagent.timing import Effort, Ratio, Timing
from cuagent.verify.batch import Batch
from cuagent.verify.oracle.process import OracleLost
from cuagent.verify.referee import Referee
from cuagent.worker import SessionEnded

BASELINES = (EAGER, COMPILE)
OpenProcesses = Callable[[], None]
"""Function that opens the processes of the next timing."""


def time_arms(
    referee: Referee,
    attempt: Attempt,
    build: Build,
    baselines: Sequence[str] = BASELINES,
    effort: Effort = Effort.QUICK,
    emit: Emit = ignore,
) -> Timing:
    """Time an accepted attempt once against the baselines.

    For several attempts use a `Timer`, which compiles the baselines only once.
    """
    with Timer(referee, baselines, emit) as timer:
        return timer.time(attempt, build, effort)


class Timer:
    """Context manager that times attempts against baselines, whose processes stay open between
    timings.

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
        """Create a timer. `device_lock` is shared with judges of other processes on the device.

        The timer acquires it itself, so its caller must not hold it.
        """
        self.referee = referee
        self.emit = emit
        self.device_lock = device_lock or DeviceLock()
        self.shared_device = self.device_lock.lock is not None
        self.device = referee.task.device
        self._baselines = Baselines(referee, baselines, emit, self.device_lock)
        lock = self.device_lock
        self._floor = TaskFloor(referee.task, referee.fork_server, self.opening, self._alone)
        self._candidate = CandidateProcess(referee, self._baselines)
        self._runner = RoundRunner(
            referee, self._baselines, self._candidate, self._floor, lock, self.opening, emit
        )
        self._twin_ratios: list[float] = []
        """Log ratio of two eager processes ("twins") in each round so far that counts."""
        self._baseline_times: dict[str, list[float]] = {}
        """Seconds of each baseline in each round so far."""

    def time(
        self,
        attempt: Attempt,
        build: Build,
        effort: Effort = Effort.QUICK,
        baselines: Sequence[str] | None = None,
    ) -> Timing:
        """Time one accepted attempt against `baselines`, or against those of the last call if None.

        A candidate's failure is in its `Arm.failed`. Raises TooLarge if the models do not fit into
        memory.
        """
        self._set_baselines(baselines)
        return self._in_parts((attempt, build), effort)

    def compare(
        self, effort: Effort = Effort.QUICK, baselines: Sequence[str] | None = None
    ) -> Timing:
        """Time the baselines without a candidate, interleaved. Ratios are eager's time over
        theirs."""
        self._set_baselines(baselines)
        return self._in_parts(None, effort)

    def prewarm(
        self,
        attempt: Attempt | None = None,
        baselines: Sequence[str] | None = None,
        sharing: Sharing = ALONE,
    ) -> OpenProcesses:
        """Prepare a timing of `attempt`; return the function that opens its processes.

        The inputs for warming up are drawn now, which needs an idle oracle; the returned function
        needs none. It raises no failure of the attempt's processes, because `time` opens them again
        and reports it. Nothing opens before the first timing: torch.compile may take long, and a
        compiler's error would have to wait for it.

        Without an attempt the function opens the baselines that stay open, for instance compiled
        ones, but not eager, whose process is as new as the candidate's in every timing. It raises
        OracleLost or ForkServerError. On a shared device it gives `sharing` (from
        `opening`) away while these open. Nothing is prewarmed for a large task.
        """
        if self.referee.large:
            return _open_nothing
        self._set_baselines(baselines)
        if attempt is None:
            return partial(self._open_baselines, sharing)
        if not self._baselines.were_opened:
            return _open_nothing
        with suppress(OracleLost):
            self._baselines.batch_with_fresh_inputs()
        return partial(self._candidate.prewarm, attempt)

    def release(self, baselines: Sequence[str] | None = None) -> None:
        """End the processes that a next timing against `baselines` does not need.

        These are other baselines and a prewarmed attempt; for a large task all. On a shared device
        eager's process ends too. It opens afresh for each timing, and every open context on a GPU
        makes the creation of the next ones slower, in any process.
        """
        self._candidate.discard()
        self._set_baselines(baselines)
        if self.referee.large:
            self.close()
        elif self.shared_device:
            self._baselines.end(EAGER)
            self._candidate.baselines_ended()

    @property
    def baselines(self) -> tuple[str, ...]:
        """The names of the baselines that an attempt is timed against."""
        return self._baselines.names

    def _set_baselines(self, baselines: Sequence[str] | None) -> None:
        """Choose the baselines and end the processes of all others; None changes nothing."""
        if baselines is not None:
            self._baselines.set_baselines(baselines)

    def keep(self, baselines: Sequence[str]) -> None:
        """Let the processes of these baselines stay open even while others are timed."""
        self._baselines.keep(() if self.referee.large else baselines)

    def open_ahead(self, baselines: Sequence[str], *, at_last: bool = False) -> None:
        """Start to open baselines in the background.

        Does nothing on a shared device, where another judge may be timing. Those of a large task
        open only `at_last`, when nothing else needs the memory, and if it holds all of them.
        """
        names = [name for name in baselines if name != EAGER]
        if not names or self.shared_device:
            return
        fits = at_last and fit_together(self.referee, len(names), len(names))
        if fits or not self.referee.large:
            self._baselines.open_ahead(names)

    @contextmanager
    def untimed(self, baselines: Sequence[str]) -> Iterator[dict[str, TimedArm]]:
        """Open these baselines without timing them and yield them by name; those that fail are left
        out.

        They stay open for a later timing, except those of a large task, which end with the block.
        """
        before = self.baselines
        self._set_baselines(baselines)
        self.keep((*before, *baselines))
        try:
            self._baselines.await_opening()
            with self.opening() as give_way:
                batch = self._baselines.batch_with_fresh_inputs()
                timed_arms = self._baselines.timed_arms(batch, give_way)
            yield timed_arms
        finally:
            self._set_baselines(before)

    @contextmanager
    def opening(self) -> Iterator[Sharing]:
        """Hold the device lock shared within the block, while processes open or outputs are judged.

        Yields a function that lets other timings have the device (see `DeviceLock.shared`). Call it
        only while none of the block's processes is working.
        """
        shared = self.device_lock.shared()
        with self.device_lock.durations.of(Stage.OPENING_ARMS), shared as give_way:
            if self.shared_device:
                with self.referee.giving_way(give_way):
                    yield give_way
            else:
                yield give_way

    def count_ahead(self) -> None:
        """Begin to count the task's work in the background, on a device without other judges."""
        if not self.shared_device:
            count_ahead(self.referee.task, self.referee.fork_server)

    def count_work(self, sharing: Sharing) -> None:
        """Count the task's work, if it is not known yet. The device is held by `sharing`."""
        self._floor.count(sharing)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the device exclusively within the block, to measure its ceilings."""
        with self.device_lock.durations.of(Stage.PROFILING), self.device_lock.exclusive():
            yield

    @property
    def failed(self) -> dict[str, str]:
        """Reasons, by baseline, why it does not open or was lost."""
        return self._baselines.failed

    def still_opening(self, baselines: Sequence[str], patience: Patience) -> tuple[str, ...]:
        """Wait as `patience` says; return those of `baselines` that are still opening in the
        background."""
        return self._baselines.still_opening(baselines, patience)

    def give_up(self, baselines: Sequence[str]) -> None:
        """End the background processes of these baselines, which are not timed any more.

        A compiler that runs during a timing delays the host's work of all arms.
        """
        self._baselines.give_up(baselines)

    def nothing_opens(self) -> AbstractContextManager[None]:
        """Wait until the baselines to be timed are open, then return a context in which none opens.

        Acquire a device lock before entering the context: a process that is stopped by it may hold
        the lock.
        """
        self._baselines.await_opening()
        return self._baselines.paused()

    def opening_paused(self, needed: Sequence[str]) -> AbstractContextManager[None]:
        """Return a context in which no baseline opens in the background.

        Nothing is paused while one of the baselines `needed` is still opening.
        """
        return self._baselines.opening_paused(needed)

    def _open_baselines(self, sharing: Sharing) -> None:
        """Open the baselines that stay open between timings, without timing them.

        On a shared device the task's work is counted too. Otherwise the first timing counts it
        while all other judges of the device wait.
        """
        every_baseline = self.baselines
        self._set_baselines([name for name in every_baseline if name != EAGER])
        try:
            if not self.shared_device:
                self._baselines.open_together()
            self._baselines.timed_arms(self._baselines.batch_with_fresh_inputs(), sharing)
        finally:
            self._set_baselines(every_baseline)
        if self.shared_device:
            sharing()
            self._floor.count(sharing)

    def opened(self) -> dict[str, TimedArm]:
        """Return the baselines that have an open process, by name."""
        return self._baselines.opened()

    def _in_parts(self, subject: Subject | None, effort: Effort) -> Timing:
        """Time all arms, in several parts if the memory does not hold all of them (`parts.py`)."""
        self.referee.make_room()
        every_baseline, timings = self.baselines, list[Timing]()
        try:
            for part in parts_of(self.referee, every_baseline, subject is not None):
                self._set_baselines(part)
                # On a shared device they open in `RoundRunner.run`, under the device lock.
                if not (self.referee.large or self.shared_device):
                    self._baselines.open_together()
                with self.device_lock.durations.of(Stage.OPENING_ARMS):
                    self._baselines.await_opening()
                with self._baselines.paused() if self._runner.pauses_whole else nullcontext():
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
        failed, done, every_baseline = "", False, self.baselines
        try:
            while not done:
                self._candidate.renew_baselines(effort, time.perf_counter() - started)
                taken = self._runner.run(subject, effort, len(rounds.valid))
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
        """Stop timing the rungs that cannot be the best one. `_in_parts` restores them after the
        timing."""
        slow = hopeless_rungs(
            taken, self.baselines, self.device, self._baseline_times, self._twin_ratios
        )
        if slow:
            self._set_baselines([name for name in self.baselines if name not in slow])

    def _assure_room(self, subject: Subject | None) -> None:
        """Raise TooLarge if the free memory does not suffice for all arms at the same time."""
        if not self._baselines.warm:
            room, models = self.referee.room, len(self.baselines) + (subject is not None)
            room.assure(self.referee.task, f"a timing of {models} models", room.timing(models))

    def _timing(
        self,
        rounds: Rounds,
        subject: Subject | None,
        effort: Effort,
        failed: str,
        seconds: float,
        baselines: Sequence[str],
    ) -> Timing:
        """Return the result of all rounds; `failed` is why the candidate did not finish, or "".

        `baselines` are those of the first round. A rung that was dropped later has an arm but no
        ratio.
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
        """The batch of inputs and outputs that the warm arms use."""
        return self._baselines.batch

    def close(self) -> None:
        """End the baselines' processes and free the memory. A second call does nothing."""
        self._candidate.discard()
        self._candidate.baselines_ended()
        self._baselines.close()

    def __enter__(self) -> Timer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _may_stop(
        self,
        rounds: Sequence[Round],
        subject: Subject | None,
        effort: Effort,
        elapsed: float,
    ) -> bool:
        if effort is not Effort.RECORD:
            return True
        if len(rounds) < CLEAR_ROUNDS:
            return False
        found = self._ratios(rounds, subject, effort)
        late = len(rounds) >= LOOKS.rounds[0] and elapsed > BUDGET_S[effort]
        return late or is_decided(rounds, found, self.device, alone=subject is None)

    def _ratios(
        self, rounds: Sequence[Round], subject: Subject | None, effort: Effort
    ) -> dict[str, Ratio]:
        alone, twin_ratios = subject is None, self._twin_ratios
        return ratios(rounds, self.baselines, effort, self.device, twin_ratios, alone=alone)


def _open_nothing() -> None:
    """Do nothing: the function that `prewarm` returns if there is nothing to prepare."""
