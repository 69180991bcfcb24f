"""The judge: builds, verifies, times and scores one attempt after another on one task.

It keeps what is dear warm between attempts: the referee's processes, the oracle, the baselines that
torch.compile took seconds to prepare. Once the ladder is known, attempts are timed against its best
rung as well. Invariant: a speed is measured only on what was accepted, and a clock that contradicts
itself takes the acceptance back.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from enum import StrEnum

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.build import build as build_sources
from cuagent.device_lock import DeviceLock
from cuagent.events import Emit, Phase, ignore
from cuagent.measure.ladder import (
    Gain,
    Ladder,
    gain_of,
    measure_ladder,
    time_rungs,
    with_record_timing,
)
from cuagent.measure.profile.profile import Profile
from cuagent.measure.profile.session import ProfileSession
from cuagent.measure.roofline.ceilings import describe
from cuagent.measure.timing.timer import Timer
from cuagent.score import Score, milestone
from cuagent.task import Device, Task
from cuagent.timing import Effort, Ratio, Standing, Timing
from cuagent.verdict import WHILE_TIMED, Reason, Verdict
from cuagent.verify.admission import Admission, admit
from cuagent.verify.domain import Domain
from cuagent.verify.referee import Isolation, Referee
from cuagent.verify.sanitize import gated
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.arms import CANDIDATE, COMPILE, EAGER


@dataclass(frozen=True)
class Judgement:
    """All that is known about one attempt."""

    attempt: str
    """Digest."""
    build: Build
    verdict: Verdict
    timing: Timing | None
    score: Score
    gain: Gain | None = None
    """What came from where; None without a ladder or without a timing against its best rung."""
    domain: Domain | None = None
    """The calls that an accepted verdict covers; None where it was not accepted."""

    @property
    def standing(self) -> Standing | None:
        """Against eager, by the whole interval; None where it was refused or not timed."""
        ratio = self.timing.ratios.get(EAGER) if self.timing is not None else None
        return ratio.standing if ratio is not None and self.verdict.accepted else None

    @property
    def is_faster(self) -> bool:
        """Right, and surely faster than eager."""
        return self.standing is Standing.FASTER

    @property
    def slower_than(self) -> str:
        """The baseline that it is surely slower than: eager, else the best rung; "" if neither.

        Without a ladder torch.compile stands for the best rung.
        """
        ratios = self.timing.ratios if self.timing is not None else {}
        names = (EAGER, self.gain.rung if self.gain is not None else COMPILE)
        slower = (n for n in names if n in ratios and ratios[n].standing is Standing.SLOWER)
        return next(slower, "")

    @property
    def rank(self) -> tuple[int, float]:
        """Larger is better: the milestone first, then the lowest of the ratios' lower limits."""
        limits = [ratio.low for ratio in self.timing.ratios.values()] if self.timing else []
        return self.score.reward, min(limits, default=0.0)

    @property
    def beats_best_rung(self) -> bool:
        """Right, and surely faster than what is free: the best rung where there is a ladder."""
        if self.timing is None or self.timing.suspect:
            return False
        return self.is_faster and (
            self.gain is None or self.gain.kernel.standing is Standing.FASTER
        )


class Result(StrEnum):
    """What a run hands to its user."""

    KERNEL = "kernel"
    """An attempt that is surely faster than the best rung."""
    RUNG = "rung"
    """The best rung of the ladder: no kernel adds to it."""
    MODULE = "module"
    """Nothing beats the module as it is."""


def result_of(best: Judgement | None, found: Ladder | None) -> Result:
    """By the judgement on the best attempt, if any, and by the ladder, if it was measured."""
    if best is not None and best.beats_best_rung:
        return Result.KERNEL
    free = free_of(best, found)
    return Result.RUNG if free and free.standing is Standing.FASTER else Result.MODULE


def free_of(best: Judgement | None, found: Ladder | None) -> Ratio | None:
    """Eager over the best rung, which is another: as timed beside the attempt, else as found."""
    rung = found.best if found is not None else None
    if rung is None or rung.name == EAGER:
        return None
    beside = best.gain if best is not None else None
    return beside.free if beside is not None and beside.rung == rung.name else rung.over_eager


class Judge:
    """Opens a task; a context manager. Raises TaskError, ForkServerError, OracleLost.

    `fork_server` is a warm process to share with judges of other tasks (`Referee`); `quiet` is for
    judges of several processes on one device. `fresh`: the ladder is measured, whatever is known.
    """

    def __init__(
        self,
        task: Task,
        isolation: Isolation = "auto",
        emit: Emit = ignore,
        *,
        fork_server: ForkServer | None = None,
        device_lock: DeviceLock | None = None,
        fresh: bool = False,
    ):
        self.task = task
        self.emit = emit
        self.device_lock = device_lock or DeviceLock()
        with self.device_lock.shared():
            self.referee = Referee(task, isolation, fork_server=fork_server)
        self._fresh = fresh
        self.ladder: Ladder | None = None
        """What the attempts are measured against, once it was climbed."""
        self._timer = Timer(self.referee, emit=emit)
        self._profiling: ProfileSession | None = None
        """For the next attempt, once that of one was asked for."""

    def admission(self) -> Admission:
        """Whether the task itself can be certified; worth asking before any work."""
        return admit(self.referee)

    def measure_ladder(self, *, whole: bool = False) -> Ladder:
        """The ladder to start from: what opens quickly, all admitted rungs where `whole`."""
        if self.ladder is None or (whole and self.ladder.later):
            with self.device_lock.exclusive():
                found = measure_ladder(self._timer, whole=whole, fresh=self._fresh)
            self._fresh = self._fresh and bool(found.later)
            self._use_ladder(found)
        assert self.ladder is not None
        return self.ladder

    def start_from(self, found: Ladder) -> bool:
        """Measure attempts against a ladder known from before; False if it is of elsewhere."""
        elsewhere = (found.task, found.device) != (self.task.digest, describe(self.task.device))
        if elsewhere or self._fresh:
            return False
        self._use_ladder(found)
        return True

    def _use_ladder(self, found: Ladder) -> None:
        self.ladder = found
        self._timer.set_baselines(found.baselines)

    def confirm_rung(self) -> Ladder:
        """The rungs that may be the best measured afresh, for a claim."""
        names = self.measure_ladder().proposed
        with self.device_lock.exclusive():
            fresh = time_rungs(self.referee, effort=Effort.RECORD, only=names, timer=self._timer)
        self._use_ladder(fresh)
        return fresh

    def open(self) -> None:
        """Open what every timing needs and takes long to prepare, before the first attempt."""
        with self.device_lock.shared():
            # On a shared device all others would wait while the first timing counts the work.
            self._timer.open(count_work=self.device_lock.lock is not None)

    def build(self, attempt: Attempt) -> Build:
        """Compile the attempt's sources; what was compiled before comes from the cache."""
        return build_sources(attempt, self.task.device)

    def judge(self, attempt: Attempt, effort: Effort | None = Effort.QUICK) -> Judgement:
        """Build, verify, time if accepted and `effort` is given, and score."""
        if self.ladder is not None and effort is Effort.RECORD:
            self._timer.set_baselines(self.ladder.proposed)
        try:
            return self._judged(attempt, effort)
        finally:
            if self.ladder is not None:
                self._timer.set_baselines(self.ladder.baselines)

    def _judged(self, attempt: Attempt, effort: Effort | None) -> Judgement:
        with self.device_lock.shared():
            build, verdict = self._verified(attempt, effort)
        timing = None
        if not verdict.accepted:
            self._timer.discard_prewarmed()
        if verdict.accepted and effort is not None:
            if self._profiling is not None:
                self._profiling.await_opened()
            with self.device_lock.exclusive():
                try:
                    timing = self._timer.time(attempt, build, effort)
                finally:
                    if self.device_lock.lock is not None:
                        self._timer.release()
            verdict = _after_timing(verdict, timing)
        gain = None
        if timing is not None and self.ladder is not None and verdict.accepted:
            # The record decides which rung is the best, and what the kernel adds to that one.
            self.ladder = with_record_timing(self.ladder, timing)
            gain = gain_of(timing, self.ladder)
        domain = self.referee.domain if verdict.accepted else None
        score = _score(verdict, timing)
        return Judgement(attempt.digest, build, verdict, timing, score, gain, domain)

    def _verified(self, attempt: Attempt, effort: Effort | None) -> tuple[Build, Verdict]:
        """What verifying says. For whoever waits, what timing would need is made ready meanwhile;
        where a device is taken by turns, whose driver all wait for, only for what is right."""
        if self.device_lock.lock is not None:
            return self._verified_among_others(attempt, effort)
        self.emit(Phase("building", passing=True))
        self._timer.make_room()
        with ThreadPoolExecutor(1) as aside:
            building = aside.submit(self.build, attempt)
            # On a CPU it would take the processors that the compiler needs.
            prewarm = effort is not None and self.task.device is Device.CUDA
            prewarm = prewarm and not self.referee.large
            if prewarm:
                self._timer.draw_inputs()  # before the oracle is busy with the verification
            pending = self.referee.begin(attempt)
            try:
                if prewarm:
                    self._timer.prewarm(attempt)
                build = building.result()
            except BaseException:
                pending.close()
                raise
        self.emit(Phase("verifying on secret inputs", passing=True))
        verdict = self.referee.complete(pending, build)
        if effort is Effort.RECORD:
            verdict = gated(self.referee, attempt, build, verdict)
        return build, verdict

    def _verified_among_others(
        self, attempt: Attempt, effort: Effort | None
    ) -> tuple[Build, Verdict]:
        """As few processes as can be: contexts on a GPU are made one after the other, whoever asks,
        and of three that a right attempt takes a wrong one needs one, and a broken build none."""
        self._timer.make_room()
        build = self.build(attempt)
        if not build.ok:
            return build, self.referee.refuse(attempt, build)
        verdict = self.referee.verify(attempt, build)
        if effort is Effort.RECORD:
            verdict = gated(self.referee, attempt, build, verdict)
        if verdict.accepted and effort is not None and not self.referee.large:
            # Open processes under the shared lock: under the exclusive one all other judges wait.
            self._timer.prewarm(attempt, wait=True)
        return build, verdict

    def profile(self, attempt: Attempt | None = None, *, counters: bool = False) -> Profile:
        """Where the time goes in the reference, or in an attempt. Raises ProfileError."""
        build = None if attempt is None else self.build(attempt)
        pending, self._profiling = self._profiling, None
        if pending is not None and (attempt is None or not pending.alive):
            pending.close()
            pending = None
        fork_server, with_candidate = self.referee.fork_server, attempt is not None
        with (
            self.device_lock.exclusive(),
            closing(
                pending or ProfileSession(self.task, fork_server, with_candidate=with_candidate)
            ) as profiling,
        ):
            found = profiling.finish(attempt, build, counters=counters)
        # The next one would open at no turn of ours, and somebody else may be timing then.
        if with_candidate and not self.referee.large and self.device_lock.lock is None:
            with suppress(ForkServerError):  # told where it is asked for
                # Whoever looks at one attempt's will at the next one's, and thinks in between.
                self._profiling = ProfileSession(self.task, fork_server, with_candidate=True)
        return found

    def close(self) -> None:
        """End every process and give all memory back."""
        if self._profiling is not None:
            self._profiling.close()
            self._profiling = None
        self._timer.close()
        self.referee.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _after_timing(verdict: Verdict, timing: Timing) -> Verdict:
    """The verdict, unless timing showed what verifying did not."""
    arm = timing.arm(CANDIDATE)
    if timing.refused:
        why = Reason.WRONG_WHILE_TIMED if timing.wrong else Reason.CLOCK_CONTRADICTION
        return replace(verdict, accepted=False, reason=why, detail=timing.refused)
    if arm is not None and arm.failed:
        return replace(
            verdict,
            accepted=False,
            reason=Reason.CRASHED,
            detail=f"{WHILE_TIMED}{arm.failed}",
        )
    return verdict


def _score(verdict: Verdict, timing: Timing | None) -> Score:
    """The reward by the lower limits of the ratios: what is not certain is not rewarded."""
    if timing is None or not verdict.accepted or timing.suspect:
        return milestone(verdict.accepted)
    values = [r.value if r else None for r in map(timing.ratios.get, (EAGER, COMPILE))]
    limits = [r.low if r else None for r in map(timing.ratios.get, (EAGER, COMPILE))]
    return Score(milestone(True, *limits).reward, *values)
