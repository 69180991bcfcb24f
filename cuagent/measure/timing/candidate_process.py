"""Open the process of the attempt that is timed, in advance where that saves time."""

from __future__ import annotations

from contextlib import suppress

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.measure.timing.baselines import FRESH_IF_OPENED_IN_S, Baselines
from cuagent.task import Device
from cuagent.timing import Effort
from cuagent.verify.oracle.process import OracleLost
from cuagent.verify.referee import Referee
from cuagent.worker import ForkServerError, Session

BUDGET_S = {Effort.GLANCE: 0.3, Effort.QUICK: 1.5, Effort.RECORD: 30.0}
"""Seconds for the repeats: of the one round of a quick timing, of all rounds of a record timing.
The smallest number of repeats runs in any case."""


class CandidateProcess:
    """The candidate's process, and the baselines' processes that open at the same time.

    A process is *prewarmed* if it was forked before its timing and waits without any code of the
    attempt.
    """

    def __init__(self, referee: Referee, baselines: Baselines) -> None:
        self.referee = referee
        self.device = referee.task.device
        self._baselines = baselines
        self._baselines_fresh = False
        """True if the baselines' processes are as new as those that a timing would open."""
        self._prewarmed: tuple[Attempt, Session] | None = None

    def prewarm(self, attempt: Attempt) -> None:
        """Fork a process that waits for `attempt`, and renew the baselines' processes.

        A failure of these processes is not raised: the timing opens them again and reports it.
        """
        self.discard()
        with suppress(ForkServerError, OracleLost):
            self._prewarmed = (
                attempt,
                self.referee.processes.waiting(attempt, cores=self._baselines.cores),
            )
            if not self._baselines_fresh:
                self._baselines.renew(_opening_limit_s(self.device, Effort.QUICK, 0.0))
                self._baselines.timed_arms(self._baselines.batch)
                self._baselines_fresh = True

    def renew_baselines(self, effort: Effort, elapsed: float) -> None:
        """Replace the processes of baselines that open quickly, unless `prewarm` did.

        `elapsed`: seconds since the timing began.
        """
        if not self._baselines_fresh:
            self._baselines.renew(_opening_limit_s(self.device, effort, elapsed))
        self._baselines_fresh = False

    def baselines_ended(self) -> None:
        """Note that a baseline's process ended, so that the next timing renews all."""
        self._baselines_fresh = False

    def begin(self, attempt: Attempt) -> None:
        """Fork the process on a GPU, so that it opens its device while the baselines open."""
        if self._prewarmed is None and self.device is Device.CUDA and not self.referee.large:
            waiting = self.referee.processes.waiting(attempt, cores=self._baselines.cores)
            self._prewarmed = attempt, waiting

    def open(self, attempt: Attempt, build: Build) -> Session:
        """Return the candidate's session: the prewarmed process of this attempt, else a new one."""
        prewarmed = None
        if self._prewarmed is not None and self._prewarmed[0] == attempt:
            (_, prewarmed), self._prewarmed = self._prewarmed, None
        return self.referee.processes.candidate(attempt, build, self._baselines.cores, prewarmed)

    def discard(self) -> None:
        """End the prewarmed process of an attempt that will not be timed."""
        if self._prewarmed is not None:
            self._prewarmed[1].close()
            self._prewarmed = None


def _opening_limit_s(device: Device, effort: Effort, elapsed: float) -> float:
    """Return the limit in seconds below which the opening of a baseline counts as quick."""
    if effort is Effort.RECORD and elapsed < BUDGET_S[effort] / 2:
        return BUDGET_S[effort] / 6
    return FRESH_IF_OPENED_IN_S[device]
