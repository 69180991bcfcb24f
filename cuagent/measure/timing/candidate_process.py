"""Open the process of the attempt to be timed, in advance where that saves time."""

from __future__ import annotations

from contextlib import suppress

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import Sharing
from cuagent.measure.timing.baselines import FRESH_IF_OPENED_IN_S, Baselines
from cuagent.task import Device
from cuagent.timing import Effort
from cuagent.verify.oracle.process import OracleLost
from cuagent.verify.referee import Referee
from cuagent.worker import ForkServerError, Session
from cuagent.worker.giving_way import run_giving_way

BUDGET_S = {Effort.GLANCE: 0.3, Effort.QUICK: 1.5, Effort.RECORD: 30.0}
"""Seconds for the repeats of a timing: one round for a glance or quick timing, all rounds for a
record timing. The smallest number of repeats runs in any case."""


class CandidateProcess:
    """Opens the candidate's process, and renews the baselines' processes with it.

    A process is *prewarmed* if it was forked before its timing and waits without any code of the
    attempt.
    """

    def __init__(self, referee: Referee, baselines: Baselines) -> None:
        self.referee = referee
        self.device = referee.task.device
        self._baselines = baselines
        self._baselines_fresh = False
        """True if the baselines' processes were renewed since the last timing."""
        self._prewarmed: tuple[Attempt, Session] | None = None

    def prewarm(self, attempt: Attempt) -> None:
        """Fork a process that will run `attempt`, and renew the baselines' processes.

        A failure is not raised: the timing opens the processes again and reports it.
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
        """End the processes of baselines that open quickly, so that fresh ones are timed.

        Does nothing if `prewarm` did this already. `elapsed`: seconds since the timing began.
        """
        if not self._baselines_fresh:
            self._baselines.renew(_opening_limit_s(self.device, effort, elapsed))
        self._baselines_fresh = False

    def baselines_ended(self) -> None:
        """Note that a baseline's process ended, so that the next timing renews the others too."""
        self._baselines_fresh = False

    def begin(self, attempt: Attempt) -> None:
        """On a GPU, fork the candidate's process now, so that CUDA starts in it while the baselines
        open.

        That of a large task only if they open at the same time, because the memory suffices.
        """
        early = self.device is Device.CUDA and (
            not self.referee.large or self._baselines.will_open_together
        )
        if self._prewarmed is None and early:
            waiting = self.referee.processes.waiting(attempt, cores=self._baselines.cores)
            self._prewarmed = attempt, waiting

    @property
    def waiting(self) -> tuple[Session, ...]:
        """The process that was forked for an attempt and runs no code of it yet; () without one."""
        return () if self._prewarmed is None else (self._prewarmed[1],)

    def open(self, attempt: Attempt, build: Build, sharing: Sharing) -> Session:
        """Return the candidate's session: the prewarmed process if it is for this attempt, else a
        new one. It is stopped while another timing waits for the device."""
        processes, cores = self.referee.processes, self._baselines.cores
        prewarmed = None
        if self._prewarmed is not None and self._prewarmed[0] == attempt:
            (_, prewarmed), self._prewarmed = self._prewarmed, None
        session = prewarmed or processes.waiting(attempt, cores=cores)
        run_giving_way(lambda: processes.finish_candidate(session, build), session, sharing)
        return session

    def discard(self) -> None:
        """End a prewarmed process that will not be needed."""
        if self._prewarmed is not None:
            self._prewarmed[1].close()
            self._prewarmed = None


def _opening_limit_s(device: Device, effort: Effort, elapsed: float) -> float:
    """Return the seconds of opening below which a baseline gets a fresh process."""
    if effort is Effort.RECORD and elapsed < BUDGET_S[effort] / 2:
        return BUDGET_S[effort] / 6
    return FRESH_IF_OPENED_IN_S[device]
