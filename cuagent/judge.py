"""Judge attempts on one task: build, verify, time and score one after another.

Costly resources stay open between attempts: the referee's processes, the oracle, baselines that
torch.compile took seconds to prepare. Once the ladder is measured, attempts are timed against its
best rung too.

Invariant: only accepted attempts are timed, and a clock that contradicts itself withdraws the
acceptance.
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
    first_rungs,
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
    """Result of judging one attempt."""

    attempt: str
    """Digest of the attempt."""
    build: Build
    verdict: Verdict
    timing: Timing | None
    score: Score
    gain: Gain | None = None
    """Parts of the gain; None without a ladder or without a timing against its best rung."""
    domain: Domain | None = None
    """Calls that an accepted verdict covers; None if it was not accepted."""

    @property
    def standing(self) -> Standing | None:
        """Return the standing against eager; None if the attempt was refused or not timed."""
        ratio = self.timing.ratios.get(EAGER) if self.timing is not None else None
        return ratio.standing if ratio is not None and self.verdict.accepted else None

    @property
    def is_faster(self) -> bool:
        """Return True if the attempt is accepted and certainly faster than eager."""
        return self.standing is Standing.FASTER

    @property
    def slower_than(self) -> str:
        """Return the baseline that certainly is faster: eager, else the best rung; "" if neither.

        Without a ladder torch.compile is used as the best rung.
        """
        ratios = self.timing.ratios if self.timing is not None else {}
        names = (EAGER, self.gain.rung if self.gain is not None else COMPILE)
        slower = (n for n in names if n in ratios and ratios[n].standing is Standing.SLOWER)
        return next(slower, "")

    @property
    def rank(self) -> tuple[int, float]:
        """Return the rank, larger is better: the milestone first, then the smallest lower limit."""
        limits = [ratio.low for ratio in self.timing.ratios.values()] if self.timing else []
        return self.score.reward, min(limits, default=0.0)

    @property
    def beats_best_rung(self) -> bool:
        """Return True if the attempt is accepted and certainly faster than the best rung.

        Without a ladder it is compared with eager.
        """
        if self.timing is None or self.timing.suspect:
            return False
        return self.is_faster and (
            self.gain is None or self.gain.kernel.standing is Standing.FASTER
        )


class Result(StrEnum):
    """Result that a run gives to its user."""

    KERNEL = "kernel"
    """An attempt that is certainly faster than the best rung."""
    RUNG = "rung"
    """The best rung of the ladder; no kernel is faster."""
    MODULE = "module"
    """The module unchanged; nothing is faster."""


def result_of(best: Judgement | None, found: Ladder | None) -> Result:
    """Return the result from the judgement of the best attempt, if any, and the ladder, if
    measured."""
    if best is not None and best.beats_best_rung:
        return Result.KERNEL
    free = free_of(best, found)
    return Result.RUNG if free and free.standing is Standing.FASTER else Result.MODULE


def free_of(best: Judgement | None, found: Ladder | None) -> Ratio | None:
    """Return eager's time over the best rung's; None if eager is the best or the ladder is missing.

    The ratio is the one timed with the attempt if available, else the ladder's.
    """
    rung = found.best if found is not None else None
    if rung is None or rung.name == EAGER:
        return None
    gain = best.gain if best is not None else None
    return gain.free if gain is not None and gain.rung == rung.name else rung.over_eager


class Judge:
    """Judges attempts on one task. A context manager. Raises TaskError, ForkServerError,
    OracleLost.

    `fork_server` is a warm process shared with judges of other tasks (`Referee`). `device_lock` is
    for judges of several processes on one device. `fresh` measures the ladder even if it is cached.
    With `kernels_only` a candidate's torch operators may not compute (`worker/operators.py`).
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
        kernels_only: bool = False,
    ):
        self.task = task
        self.emit = emit
        self.device_lock = device_lock or DeviceLock()
        with self.device_lock.shared():
            self.referee = Referee(
                task, isolation, fork_server=fork_server, kernels_only=kernels_only
            )
        self._fresh = fresh
        self.ladder: Ladder | None = None
        """Ladder that attempts are compared with, once it is measured."""
        self._timer = Timer(self.referee, emit=emit)
        self._next_profile: ProfileSession | None = None
        """Prewarmed profile of the next attempt, started after the first profile of an attempt."""

    def admission(self) -> Admission:
        """Check if the task can be certified; call it before any other work."""
        return admit(self.referee)

    def measure_ladder(self, *, whole: bool = False) -> Ladder:
        """Return the ladder: the rungs that open quickly, or all admitted rungs if `whole`."""
        if self.ladder is None or (whole and self.ladder.later):
            with self.device_lock.exclusive():
                found = measure_ladder(self._timer, whole=whole, fresh=self._fresh)
            self._fresh = self._fresh and bool(found.later)
            self._use_ladder(found)
        assert self.ladder is not None
        return self.ladder

    def start_from(self, found: Ladder) -> bool:
        """Use an earlier ladder; return False if it is of another task or device."""
        differs = (found.task, found.device) != (self.task.digest, describe(self.task.device))
        if differs or self._fresh:
            return False
        self._use_ladder(found)
        return True

    def _use_ladder(self, found: Ladder) -> None:
        self.ladder = found
        self._timer.set_baselines(found.baselines)

    def confirm_rung(self) -> Ladder:
        """Time the rungs that may be the best again, at record effort."""
        names = self.measure_ladder().proposed
        with self.device_lock.exclusive():
            fresh = time_rungs(self.referee, effort=Effort.RECORD, only=names, timer=self._timer)
        self._use_ladder(fresh)
        return fresh

    def open(self) -> None:
        """Open the baselines that take long to prepare, before the first attempt."""
        with self.device_lock.shared():
            # Otherwise the first timing counts the work while all other judges of the device wait.
            self._timer.open(count_work=self.device_lock.lock is not None)

    def prepare_ladder(self) -> None:
        """Compile the rungs that the ladder begins with; on a device that no other judge shares,
        `measure_ladder` does it."""
        if self.ladder is None and self.device_lock.lock is not None:
            with self.device_lock.shared():
                self._timer.set_baselines(first_rungs(self.referee))
                self._timer.open(count_work=True)

    def build(self, attempt: Attempt) -> Build:
        """Compile the attempt's sources; unchanged sources come from the cache."""
        return build_sources(attempt, self.task.device)

    def judge(self, attempt: Attempt, effort: Effort | None = Effort.QUICK) -> Judgement:
        """Build, verify and score an attempt; time it if it is accepted and `effort` is given."""
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
            if self._next_profile is not None:
                self._next_profile.await_opened()
            with self.device_lock.exclusive():
                try:
                    timing = self._timer.time(attempt, build, effort)
                finally:
                    if self.device_lock.lock is not None:
                        self._timer.release()
            verdict = _after_timing(verdict, timing)
        gain = None
        if timing is not None and self.ladder is not None and verdict.accepted:
            # A record timing decides which rung is the best, and so the gain of the kernel.
            self.ladder = with_record_timing(self.ladder, timing)
            gain = gain_of(timing, self.ladder)
        domain = self.referee.domain if verdict.accepted else None
        score = _score(verdict, timing)
        return Judgement(attempt.digest, build, verdict, timing, score, gain, domain)

    def _verified(self, attempt: Attempt, effort: Effort | None) -> tuple[Build, Verdict]:
        """Build and verify an attempt.

        If the device is not shared, the processes of a timing open meanwhile. On a shared device
        they open only for accepted attempts, because all its users wait for the driver.
        """
        if self.device_lock.lock is not None:
            return self._verified_on_shared_device(attempt, effort)
        self.emit(Phase("building", passing=True))
        self._timer.make_room()
        with ThreadPoolExecutor(1) as executor:
            building = executor.submit(self.build, attempt)
            # On a CPU prewarming would use the processors that the compiler needs.
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

    def _verified_on_shared_device(
        self, attempt: Attempt, effort: Effort | None
    ) -> tuple[Build, Verdict]:
        """Build and verify with as few processes as possible.

        The driver creates contexts on a GPU one after another, for all processes. An accepted
        attempt needs three, a wrong one needs one, and a failed build needs none.
        """
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
        """Profile the reference or an attempt. Raises ProfileError."""
        build = None if attempt is None else self.build(attempt)
        session, self._next_profile = self._next_profile, None
        if session is not None and (attempt is None or not session.alive):
            session.close()
            session = None
        fork_server, with_candidate = self.referee.fork_server, attempt is not None
        with (
            self.device_lock.exclusive(),
            closing(
                session or ProfileSession(self.task, fork_server, with_candidate=with_candidate)
            ) as opened,
        ):
            found = opened.finish(attempt, build, counters=counters)
        # On a shared device the next profile would open while another judge may be timing.
        if with_candidate and not self.referee.large and self.device_lock.lock is None:
            with suppress(ForkServerError):  # the next call of `profile` reports it
                # An agent that profiles one attempt usually profiles the next; start its profiler
                # now.
                self._next_profile = ProfileSession(self.task, fork_server, with_candidate=True)
        return found

    def close(self) -> None:
        """End all processes and free all memory."""
        if self._next_profile is not None:
            self._next_profile.close()
            self._next_profile = None
        self._timer.close()
        self.referee.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _after_timing(verdict: Verdict, timing: Timing) -> Verdict:
    """Return the verdict, rejected if timing showed a fault that verification did not."""
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
    """Return the score; the reward uses the ratios' lower limits, so uncertain gains get none."""
    if timing is None or not verdict.accepted or timing.suspect:
        return milestone(verdict.accepted)
    values = [r.value if r else None for r in map(timing.ratios.get, (EAGER, COMPILE))]
    limits = [r.low if r else None for r in map(timing.ratios.get, (EAGER, COMPILE))]
    return Score(milestone(True, *limits).reward, *values)
