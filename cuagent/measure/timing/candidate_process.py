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
        self._prewarmed: list[tuple[Attempt, Session]] = []

    def prewarm(self, attempt: Attempt) -> None:
        """Fork a process that will run `attempt`, and renew the baselines' processes.

        A failure is not raised: the timing opens the processes again and reports it.
        """
        self.discard()
        with suppress(ForkServerError, OracleLost):
            self._fork(attempt)
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

    def begin(self, attempt: Attempt, rounds: int = 1) -> None:
        """On a GPU, fork the candidate's processes of this round and the next ones now, `rounds` in
        all, so that CUDA starts in them while the baselines open."""
        while self._baselines.opens_together and len(self._prewarmed) < rounds:
            self._fork(attempt)

    def _fork(self, attempt: Attempt) -> None:
        waiting = self.referee.processes.waiting(attempt, cores=self._baselines.cores)
        self._prewarmed.append((attempt, waiting))

    @property
    def waiting(self) -> tuple[Session, ...]:
        """The processes that were forked for an attempt and run no code of it yet."""
        return tuple(session for _, session in self._prewarmed)

    def open(self, attempt: Attempt, build: Build, sharing: Sharing) -> Session:
        """Return the candidate's session: a prewarmed process if it is for this attempt, else a new
        one. It is stopped while another timing waits for the device.

        Processes of later rounds are stopped until their round.
        """
        processes, cores = self.referee.processes, self._baselines.cores
        found = next((item for item in self._prewarmed if item[0] == attempt), None)
        if found is not None:
            self._prewarmed.remove(found)
        self._stop_later()
        session = processes.waiting(attempt, cores=cores) if found is None else found[1]
        session.unpause()
        run_giving_way(lambda: processes.finish_candidate(session, build), session, sharing)
        return session

    def _stop_later(self) -> None:
        """Stop the processes of later rounds; end those that cannot be stopped, because they would
        compute while others are timed."""
        for item in list(self._prewarmed):
            if not item[1].pause():
                item[1].close()
                self._prewarmed.remove(item)

    def discard(self) -> None:
        """End the prewarmed processes that will not be needed."""
        while self._prewarmed:
            self._prewarmed.pop()[1].close()


def _opening_limit_s(device: Device, effort: Effort, elapsed: float) -> float:
    """Return the seconds of opening below which a baseline gets a fresh process."""
    if effort is Effort.RECORD and elapsed < BUDGET_S[effort] / 2:
        return BUDGET_S[effort] / 6
    return FRESH_IF_OPENED_IN_S[device]
