"""Judge attempts on one task: build, verify, time and score one after another.

Costly resources stay open between attempts: the referee's processes, the oracle, baselines that
torch.compile took seconds to prepare. Once the ladder (`measure/task_ladder.py`) is measured,
attempts are timed against its best rung too.

Invariant: an attempt is timed after it is accepted. The exception is an attempt that must be faster
than an earlier one: it is timed first, and such a timing can only refuse it. A clock that
contradicts itself withdraws the acceptance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from cuagent.arms import CANDIDATE
from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.build import build as build_sources
from cuagent.device_lock import ALONE, DeviceLock, Sharing
from cuagent.durations import Stage
from cuagent.events import Emit, Phase, ignore
from cuagent.judgement import Judgement
from cuagent.measure.profile.prewarmed import Profiles
from cuagent.measure.profile.profile import Profile
from cuagent.measure.rung_compiler import RungCompiler
from cuagent.measure.rungs import Ladder, gain_of
from cuagent.measure.task_ladder import TaskLadder
from cuagent.measure.timing.timer import BASELINES, Timer
from cuagent.overlap import Overlap, Prewarm
from cuagent.score import score_of
from cuagent.task import Device, Task
from cuagent.timing import Effort, Timing
from cuagent.verdict import WHILE_TIMED, Reason, Verdict
from cuagent.verify import races
from cuagent.verify.admission import Admission, admit
from cuagent.verify.compiled_code import compiles_when_called
from cuagent.verify.pending import PendingVerdict
from cuagent.verify.referee import Isolation, Referee
from cuagent.verify.sanitize import gated
from cuagent.verify.standing import StandingVerdicts
from cuagent.worker import ForkServer


class LocalJudge:
    """Judges attempts at `task` in this process. A context manager.

    `fork_server` is a warm process that judges of other tasks use too (`Referee`). `device_lock` is
    for judges of several processes on one device. With `fresh` the ladder is measured even if it is
    cached. Attempts are timed against `baselines` until the ladder is measured. With `kernels_only`
    a candidate must compute in its own kernels; of torch's operators only products and convolutions
    may compute (`worker/operators.py`). If attempts may be `timed`, torch.compile is imported in
    advance. Raises TaskError, ForkServerError, OracleLost.
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
        baselines: Sequence[str] = BASELINES,
        kernels_only: bool = False,
        timed: bool = True,
    ):
        self.task = task
        self.emit = emit
        self.device_lock = device_lock or DeviceLock()
        self.durations = self.device_lock.durations
        """Seconds that this judge has spent in each stage."""
        with self.durations.of(Stage.OPENING), self.device_lock.shared() as give_way:
            self.referee = Referee(
                task,
                isolation,
                fork_server=fork_server,
                kernels_only=kernels_only,
                compiler=timed,
                lock=self.device_lock.lock,
                give_way=give_way,
            )
        self.overlap = Overlap.on(
            task.device,
            shared=self.device_lock.lock is not None,
            large=self.referee.large,
            bytes_per_call=self.referee.bytes_per_call,
        )
        server, large = self.referee.fork_server, self.referee.large
        self._timer = Timer(self.referee, baselines, emit, device_lock=self.device_lock)
        self._profiles = Profiles(task, server, self.device_lock)
        self._ladder = TaskLadder(
            self._timer,
            RungCompiler(task, server, self.device_lock, large=large),
            baselines=baselines,
            fresh=fresh,
            before_timing=self._profiles.await_opened,
        )
        self._verified_ahead: tuple[Build, Verdict] | None = None
        """(build, verdict) at record effort of an attempt that is not yet timed at that effort;
        else None.
        """
        self._standing = StandingVerdicts(self.referee.bytes_per_call)

    def admission(self) -> Admission:
        """Examine if the task can be certified; must be called before any other work."""
        with (
            self.durations.of(Stage.OPENING),
            self.device_lock.shared() as give_way,
            self.referee.giving_way(give_way),
        ):
            return admit(self.referee, give_way)

    # -- the ladder that attempts are compared with

    def start_ladder(self) -> None:
        """Begin to open torch.compile's rung and the reference's profiler in the background, and to
        count the task's work."""
        self._ladder.start()
        if self.overlap.prewarm_profile:
            # A run usually profiles the reference first.
            self._profiles.prewarm(with_candidate=False)

    def open_first_rungs(self) -> None:
        """On a GPU that no other judge uses, begin to open the rungs that are measured first.

        Call it after `admission`, whose measurements they would disturb.
        """
        self._ladder.open_first_rungs()

    def measure_ladder(self, *, whole: bool = False, wait_s: float | None = None) -> Ladder:
        """Measure the rungs that open quickly, or all admitted rungs if `whole`; return the ladder.

        With `wait_s`, rungs that still compile in the background after that many seconds are left
        out. The others may be opened but not timed: the record timing that follows times them.
        """
        return self._ladder.measure(whole=whole, wait_s=wait_s)

    def start_from(self, found: Ladder) -> bool:
        """Use the ladder of an earlier run; return False if it is of another task or device."""
        return self._ladder.start_from(found)

    def drop_ladder(self) -> None:
        """Forget the ladder: later attempts are timed against the default baselines only."""
        self._ladder.drop()
        with self.device_lock.shared():
            self._ladder.release()

    def confirm_rung(self) -> Ladder:
        """Time the rungs that may be the best again at record effort; return the ladder with
        them.
        """
        return self._ladder.confirm()

    def open(self) -> None:
        """Open the baselines that take long to prepare, before the first attempt."""
        with self._timer.opening() as give_way:
            self._timer.prewarm(None, self._ladder.baselines(), give_way)()

    def prepare_ladder(
        self,
        compiled: Callable[[], Collection[str]] = tuple,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Compile and open the rungs that are measured first.

        `compiled` waits for rungs that compile already, which only open. `meanwhile` is called in
        this thread while the rungs compile in others. On a device that no other judge uses nothing
        else is done: there `measure_ladder` compiles the rungs.
        """
        if self._ladder.found is not None or self.device_lock.lock is None:
            meanwhile()
            return
        self.emit(Phase("compiling the rungs"))
        with ThreadPoolExecutor(1) as executor:
            compiling = executor.submit(lambda: self._ladder.compile_first_rungs(compiled()))
            meanwhile()
            names = compiling.result()
        self.emit(Phase("opening the rungs"))
        with self._timer.opening() as give_way:
            self._timer.prewarm(None, names, give_way)()

    # -- judgements

    def build(self, attempt: Attempt) -> Build:
        """Compile the attempt's sources; unchanged sources are read from the cache."""
        with self.durations.of(Stage.BUILDING):
            return build_sources(attempt, self.task.device)

    def judge(
        self, attempt: Attempt, effort: Effort | None = Effort.QUICK, *, than: Timing | None = None
    ) -> Judgement:
        """Build, verify and score an attempt; time it if it is accepted and `effort` is not None.

        `than` is the timing of an earlier attempt. With it the attempt is timed first. If it is
        surely slower, it is rejected as TOO_SLOW and not verified. Otherwise it is not timed again.
        """
        build = timing = None
        if than is not None and effort is not None:
            build, timing = self._timed_first(attempt, effort)
            if (verdict := self._too_slow(attempt, timing, than)) is not None:
                return Judgement(attempt.digest, build, verdict, timing, score_of(verdict, timing))
        ahead, self._verified_ahead = self._verified_ahead, None
        if ahead is not None and effort is Effort.RECORD and ahead[1].attempt == attempt.digest:
            build, verdict = ahead
        else:
            build, verdict = self._verdict(attempt, effort, build)
        if not verdict.accepted:
            timing = None
        elif effort is not None:
            timing, verdict = self._timed(attempt, build, verdict, effort, timing)
        self._standing.keep(verdict, effort)
        return self._judgement(attempt, build, verdict, timing)

    def verify_ahead(self, attempt: Attempt) -> None:
        """Verify an attempt at record effort now, while rungs compile in the background.

        The next call of `judge` for it at record effort uses this verdict. Does nothing if the
        rungs would not compile meanwhile.
        """
        if self.device_lock.lock is None and not self.overlap.open_while_verifying:
            return
        found = self._verdict(attempt, Effort.RECORD, None)
        if found[1].reason is not Reason.INFRASTRUCTURE:  # else `judge` verifies it again
            self._verified_ahead = found

    def _verdict(
        self, attempt: Attempt, effort: Effort | None, build: Build | None
    ) -> tuple[Build, Verdict]:
        """Verify an attempt, which is built first if `build` is None; return (build, verdict).

        Draws of an earlier verdict may stand (`StandingVerdicts`).
        """
        self._ladder.open_later_rungs()
        standing = self._standing.take(attempt.digest, effort)
        paused: AbstractContextManager[None] = nullcontext()
        if not self.overlap.open_while_verifying:
            paused = self._timer.opening_paused(self._ladder.baselines(effort))
        begins_early = self.overlap.begin_while_building and not compiles_when_called(attempt)
        if build is None and (standing is not None or not begins_early):
            build = self._built(attempt)
        with self.durations.of(Stage.VERIFYING), paused:
            if standing is not None and build is not None and build.ok:
                verdict = standing
            else:
                with self.device_lock.shared() as give_way, self.referee.giving_way(give_way):
                    build, verdict = self._verified(attempt, effort, build, give_way)
            verdict = self._checked(attempt, effort, build, verdict)
            if verdict.reason is Reason.INFRASTRUCTURE:
                self._timer.close()  # its processes may hold the memory that was missing
            elif not verdict.accepted:
                self._ladder.release()
        return build, verdict

    def _judgement(
        self, attempt: Attempt, build: Build, verdict: Verdict, timing: Timing | None
    ) -> Judgement:
        """Return the judgement from its parts.

        If the attempt may be the result, begin to compile the rungs that only a record timing
        needs.
        """
        accepted = verdict.accepted
        gain = domain = None
        if accepted:
            domain = self.referee.domain
            if timing is not None and self._ladder.found is not None:
                gain = gain_of(timing, self._ladder.found)
        score = score_of(verdict, timing)
        judgement = Judgement(attempt.digest, build, verdict, timing, score, gain, domain)
        if timing is not None and accepted and not judgement.loses_to:
            self._ladder.compile_later_rungs()
        return judgement

    def _timed_first(self, attempt: Attempt, effort: Effort) -> tuple[Build, Timing | None]:
        """Build and time an attempt before it is verified; return (build, timing).

        The timing is None if the build failed.
        """
        build = self._built(attempt)
        if not build.ok:
            return build, None
        if compiles_when_called(attempt):
            with (
                self.durations.of(Stage.BUILDING),
                self.device_lock.shared() as sharing,
                self.referee.giving_way(sharing),
            ):
                self.referee.compile_ahead(attempt, build, sharing)
        return build, self._timing(attempt, build, effort)

    def _too_slow(self, attempt: Attempt, timing: Timing | None, than: Timing) -> Verdict | None:
        """Return the rejection of an attempt that is surely slower than an earlier one; else None.

        For each common baseline, the upper limit of its ratio must be below the earlier ratio
        `than`: with eager alone the comparison would depend on how busy the host is.
        """
        now = timing.ratios if timing is not None else {}
        both = [(name, now[name], than.ratios[name]) for name in now if name in than.ratios]
        if not both or any(ratio.high >= earlier.value for _, ratio, earlier in both):
            return None
        detail = ", ".join(
            f"{ratio.value:.2f}x over {name} instead of {earlier.value:.2f}x"
            for name, ratio, earlier in both
        )
        tier = self.referee.stamp()
        return Verdict(False, Reason.TOO_SLOW, detail, self.task.digest, attempt.digest, tier=tier)

    def _built(self, attempt: Attempt) -> Build:
        self.emit(Phase("building", passing=True))
        return self.build(attempt)

    def _verified(
        self,
        attempt: Attempt,
        effort: Effort | None,
        build: Build | None,
        give_way: Sharing = ALONE,
    ) -> tuple[Build, Verdict]:
        """Verify an attempt by the draws; return (build, verdict).

        If `build` is None, the attempt is built while the processes of the verification open.
        """
        if build is None:
            self.emit(Phase("building", passing=True))
            prewarms = effort is not None and self.overlap.prewarm is Prewarm.WHILE_BUILDING
            build, pending = self._built_and_begun(attempt, effort if prewarms else None)
            self.emit(Phase("verifying on secret inputs", passing=True))
            verdict = self.referee.complete(pending, build)
        else:
            if not build.ok:
                return build, self.referee.refuse(attempt, build)
            if effort is not None:
                with self.durations.of(Stage.BUILDING):
                    self.referee.compile_ahead(attempt, build, give_way)
            self.emit(Phase("verifying on secret inputs", passing=True))
            verdict = self.referee.verify(attempt, build, sharing=give_way)
        return build, verdict

    def _built_and_begun(
        self, attempt: Attempt, prewarmed: Effort | None
    ) -> tuple[Build, PendingVerdict]:
        """Build the attempt while the processes of its verification open; return (build, pending
        verdict).

        With `prewarmed` the processes of a timing of this effort open too.
        """
        with ThreadPoolExecutor(1) as executor:
            building = executor.submit(self.build, attempt)
            open_processes = None
            if prewarmed is not None:  # before the verification makes the oracle busy
                open_processes = self._timer.prewarm(attempt, self._ladder.baselines(prewarmed))
            pending = self.referee.begin(attempt)
            try:
                if open_processes is not None:
                    open_processes()
                return building.result(), pending
            except BaseException:
                pending.close()
                raise

    def _checked(
        self, attempt: Attempt, effort: Effort | None, build: Build, verdict: Verdict
    ) -> Verdict:
        """Return the verdict after compute-sanitizer and the search for data races.

        They find faults that no output shows.
        """
        with self.durations.of(Stage.SANITIZING):
            if effort is Effort.RECORD and verdict.accepted and self.task.device is Device.CUDA:
                self.emit(Phase("checking the kernels' memory accesses with compute-sanitizer"))
                verdict = gated(self.referee, attempt, build, verdict, self.device_lock)
            if effort is not Effort.QUICK:
                verdict = races.gated(self.referee, attempt, verdict)
        return verdict

    def _timed(
        self, attempt: Attempt, build: Build, verdict: Verdict, effort: Effort, known: Timing | None
    ) -> tuple[Timing, Verdict]:
        """Time an accepted attempt; return the timing, and the verdict, which the timing may
        change.

        `known` is a timing that was made before the verdict.
        """
        timing = known or self._timing(attempt, build, effort)
        verdict = _after_timing(verdict, timing)
        if verdict.accepted:
            self._ladder.add_record_timing(timing)
        return timing, verdict

    def _timing(self, attempt: Attempt, build: Build, effort: Effort) -> Timing:
        """Time an attempt against the baselines for `effort`.

        Each sample is taken while no other judge uses the device.
        """
        self._profiles.await_opened()
        try:
            return self._timer.time(attempt, build, effort, self._ladder.baselines(effort))
        finally:
            self._ladder.release()

    def profile(self, attempt: Attempt | None = None, *, counters: bool = False) -> Profile:
        """Profile an attempt, or the reference if `attempt` is None. Raises ProfileError.

        With `counters` the hardware counters of the kernels are read too.
        """
        build = None if attempt is None else self.build(attempt)
        with self.durations.of(Stage.PROFILING):
            found = self._profiles.profile(
                attempt,
                build,
                counters=counters,
                alone=self._alone,
                compiled=self.referee.processes.compiled,
            )
        self._ladder.open_later_rungs()
        if attempt is not None and self.overlap.prewarm_profile:
            self._profiles.prewarm(with_candidate=True)
        return found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Context that acquires the device exclusively, while no process opens in the
        background.
        """
        with self.device_lock.exclusive(), self._timer.nothing_opens():
            yield

    def close(self) -> None:
        """End all processes and release all memory."""
        self._profiles.close()
        self._timer.close()
        self.referee.close()

    def __enter__(self) -> LocalJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _after_timing(verdict: Verdict, timing: Timing) -> Verdict:
    """Return the verdict, changed to a rejection if the timing showed a fault."""
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
