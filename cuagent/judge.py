"""The judge: builds, verifies, times and scores one attempt after another on one task.

It keeps what is dear warm between attempts: the referee's processes, the oracle, the baselines that
torch.compile took seconds to prepare. Invariant: a speed is measured only on what was accepted, and
a clock that contradicts itself takes the acceptance back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.build import build as build_sources
from cuagent.events import Emit, ignore
from cuagent.measure.profile import Profile
from cuagent.measure.profile import profile as profile_task
from cuagent.measure.protocol import Timer
from cuagent.measure.timing import Effort, Standing, Timing
from cuagent.score import Score, milestone
from cuagent.task import Task
from cuagent.verify.admission import Admission, admit
from cuagent.verify.referee import Isolation, Referee
from cuagent.verify.verdict import Reason, Verdict
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

    @property
    def standing(self) -> Standing | None:
        """Against eager, by the whole interval; None where it was refused or not timed."""
        ratio = self.timing.ratios.get(EAGER) if self.timing is not None else None
        return ratio.standing if ratio is not None and self.verdict.accepted else None

    @property
    def gains(self) -> bool:
        """Right, and surely faster than eager."""
        return self.standing is Standing.FASTER


class Judge:
    """Opens a task; a context manager. Raises TaskError, NurseryError, OracleLost."""

    def __init__(self, task: Task, isolation: Isolation = "auto", emit: Emit = ignore):
        self.task = task
        self.referee = Referee(task, isolation)
        self._timer = Timer(self.referee, emit=emit)

    def admission(self) -> Admission:
        """Whether the task itself can be certified; worth asking before any work."""
        return admit(self.referee)

    def build(self, attempt: Attempt) -> Build:
        """Compile the attempt's sources; what was compiled before comes from the cache."""
        return build_sources(attempt, self.task.device)

    def judge(self, attempt: Attempt, effort: Effort | None = Effort.QUICK) -> Judgement:
        """Build, verify, time if accepted and `effort` is given, and score."""
        build = self.build(attempt)
        verdict = self.referee.verify(attempt, build)
        timing = None
        if verdict.accepted and effort is not None:
            timing = self._timer.time(attempt, build, effort)
            verdict = _after_timing(verdict, timing)
        return Judgement(attempt.digest, build, verdict, timing, _score(verdict, timing))

    def profile(self, attempt: Attempt | None = None, *, counters: bool = False) -> Profile:
        """Where the time goes in the reference, or in an attempt. Raises ProfileError."""
        build = None if attempt is None else self.build(attempt)
        nursery = self.referee.nursery
        return profile_task(self.task, attempt, build, nursery=nursery, counters=counters)

    def close(self) -> None:
        """End every process and give all memory back."""
        self._timer.close()
        self.referee.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _after_timing(verdict: Verdict, timing: Timing) -> Verdict:
    """The verdict, unless timing showed what verifying did not."""
    arm = timing.arm(CANDIDATE)
    if timing.contradiction:
        return replace(
            verdict,
            accepted=False,
            reason=Reason.CLOCK_CONTRADICTION,
            detail=timing.contradiction,
        )
    if arm is not None and arm.failed:
        return replace(
            verdict,
            accepted=False,
            reason=Reason.CRASHED,
            detail=f"while it was timed: {arm.failed}",
        )
    return verdict


def _score(verdict: Verdict, timing: Timing | None) -> Score:
    """The reward by the lower limits of the ratios: what is not certain is not rewarded."""
    if timing is None or not verdict.accepted or timing.suspect:
        return milestone(verdict.accepted)
    values = [r.value if r else None for r in map(timing.ratios.get, (EAGER, COMPILE))]
    limits = [r.low if r else None for r in map(timing.ratios.get, (EAGER, COMPILE))]
    return Score(milestone(True, *limits).reward, *values)
