"""The interface of a judge, as the agent's loop and tools use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cuagent.timing import Effort

if TYPE_CHECKING:
    from cuagent.attempt import Attempt
    from cuagent.build import Build
    from cuagent.judgement import Judgement
    from cuagent.measure.profile.profile import Profile
    from cuagent.measure.rungs import Ladder
    from cuagent.task import Task
    from cuagent.timing import Timing


class Judge(Protocol):
    """Judge of one task.

    `LocalJudge` (`cuagent.judge`) works in this process. `PooledJudge`
    (`cuagent.training.judging.pool`) asks a pool of judging processes. Both may raise
    ForkServerError and OracleLost.
    """

    @property
    def task(self) -> Task:
        """Task that all attempts are for."""
        ...

    def build(self, attempt: Attempt) -> Build:
        """Compile the attempt's sources."""
        ...

    def judge(
        self, attempt: Attempt, effort: Effort | None = Effort.QUICK, *, than: Timing | None = None
    ) -> Judgement:
        """Build, verify and score an attempt; time it if it is accepted and `effort` is given.

        `than` is the timing of an earlier attempt. With it the attempt may be timed first. If it is
        surely slower, it is refused as TOO_SLOW and not verified.
        """
        ...

    def verify_ahead(self, attempt: Attempt) -> None:
        """Verify an attempt for the record, if that saves time. The next call of `judge` for it at
        record effort then uses this verdict."""
        ...

    def profile(self, attempt: Attempt | None = None, *, counters: bool = False) -> Profile:
        """Profile the reference or an attempt. Raises ProfileError."""
        ...

    def measure_ladder(self, *, whole: bool = False, wait_s: float | None = None) -> Ladder:
        """Return the ladder: the rungs that open quickly, or all admitted rungs if `whole`.

        With `wait_s`, rungs that still compile in the background after that many seconds are left
        out. The others may be opened but not timed: the record timing that follows times them.
        """
        ...

    def confirm_rung(self) -> Ladder:
        """Time the rungs that may be the best again, at record effort, and return their ladder."""
        ...

    def start_from(self, found: Ladder) -> bool:
        """Use an earlier ladder; return False if this judge has to measure its own."""
        ...
