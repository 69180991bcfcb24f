"""The interface of a judge for the agent's loop and tools."""

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
    """Protocol of an object that judges all attempts at one task.

    `LocalJudge` (`cuagent.judge`) works in this process. `PooledJudge`
    (`cuagent.training.judging.pool`) sends attempts to a pool of judging processes. Both may raise
    ForkServerError and OracleLost.
    """

    @property
    def task(self) -> Task:
        """Task whose attempts are judged."""
        ...

    def build(self, attempt: Attempt) -> Build:
        """Compile the attempt's sources; return the libraries and the compiler's messages."""
        ...

    def judge(
        self, attempt: Attempt, effort: Effort | None = Effort.QUICK, *, than: Timing | None = None
    ) -> Judgement:
        """Build, verify and score an attempt; time it if it is accepted and `effort` is not None.

        `than` is the timing of an earlier attempt. With it the attempt may be timed first. If it is
        surely slower than that attempt, it is rejected as TOO_SLOW and not verified.
        """
        ...

    def verify_ahead(self, attempt: Attempt) -> None:
        """Verify an attempt at record effort now, if that saves time later.

        The next call of `judge` for it at record effort then uses this verdict.
        """
        ...

    def profile(self, attempt: Attempt | None = None, *, counters: bool = False) -> Profile:
        """Profile an attempt, or the reference if `attempt` is None. Raises ProfileError.

        With `counters` the hardware counters of the kernels are read too.
        """
        ...

    def measure_ladder(self, *, whole: bool = False, wait_s: float | None = None) -> Ladder:
        """Measure the rungs that open quickly, or all admitted rungs if `whole`; return the ladder.

        With `wait_s`, rungs that still compile in the background after that many seconds are left
        out. The others may be opened but not timed: the record timing that follows times them.
        """
        ...

    def confirm_rung(self) -> Ladder:
        """Time the rungs that may be the best again at record effort; return the ladder with
        them.
        """
        ...

    def start_from(self, found: Ladder) -> bool:
        """Use the ladder `found` of an earlier run as this judge's baselines.

        Returns False if it does not fit (another machine), so that the ladder must be measured.
        """
        ...
