"""Run compute-sanitizer in the background on the attempt that may be a run's result.

The check takes up to 15 s, but neither the referee nor any time of the attempt. So it runs while
the next attempt is built, and stops while anything is timed (`DeviceLock`). A check that is needed
gets at least the time of a check in the foreground.

Invariant: only a complete check counts. Otherwise the check runs again in the foreground.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from cuagent.attempt import Attempt
from cuagent.build import Build
from cuagent.device_lock import DeviceLock
from cuagent.task import TaskError
from cuagent.task.memory import free
from cuagent.verify import sanitize
from cuagent.verify.compute_sanitizer import EXCEEDED, Outcome, Patience
from cuagent.verify.oracle.process import OracleLost
from cuagent.verify.sanitize import Check
from cuagent.verify.tool_runs import UNCONFIRMED, Run

if TYPE_CHECKING:
    from cuagent.verify.referee import Referee

TIMED_ARMS = 8
"""Number of models for whose timing memory must remain while a check runs in the background."""


@dataclass
class _Running:
    """One check in the background."""

    attempt: str
    build: Build
    thread: Thread
    patience: Patience
    result: Future[Check | None]


class SanitizeAhead:
    """At most one check in the background: that of the best attempt so far.

    `device_lock` is shared by the tools, which stop while another use of it is exclusive.
    """

    def __init__(self, referee: Referee, device_lock: DeviceLock) -> None:
        self._referee = referee
        # Without its durations, because other stages go on meanwhile.
        self._lock = DeviceLock(device_lock.lock, uses=device_lock.uses)
        self._running: _Running | None = None

    def begin(self, attempt: Attempt, build: Build) -> None:
        """Start to check an accepted attempt, in place of an earlier one; do nothing without room.

        Call it while the oracle is idle and the lock is free: a set of inputs is drawn.
        """
        running = self._running
        if running is not None and running.attempt == attempt.digest:
            return
        self.end()
        found = sanitize.applicable(self._referee, attempt, build)
        if found is None or not self._has_room(len(found[2]) + 1):
            return
        with suppress(OracleLost, TaskError):  # the check in the foreground reports it
            self._running = self._begun(attempt, build, *found)
            self._running.thread.start()

    def _begun(
        self,
        attempt: Attempt,
        build: Build,
        program: Path,
        kernels: frozenset[str],
        tools: Sequence[str],
    ) -> _Running:
        """Copy the data of a check and return it, ready to start."""
        referee, patience, result = self._referee, Patience(), Future[Check | None]()
        folder = Path(tempfile.mkdtemp(prefix="sanitize-", dir=referee.folder))
        run = Run(
            *(program, attempt, build, referee.tier, kernels, referee.processes.compiled),
            *(time.monotonic() + sanitize.BUDGET_S, self._lock, patience),
        )
        try:
            call = sanitize.first_call(run, referee, folder, tools, self._lock).copied()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

        def work() -> None:
            try:
                check = call.check()
                result.set_result(check if _is_complete(check, build) else None)
            except BaseException as error:  # noqa: BLE001 - raised where the result is taken
                result.set_exception(error)
            finally:
                shutil.rmtree(folder, ignore_errors=True)

        return _Running(attempt.digest, build, Thread(target=work, daemon=True), patience, result)

    def take(self, attempt: Attempt, build: Build) -> Check | None:
        """Wait for the check of an attempt and return it; None if it must run in the foreground.

        The caller must not hold the lock.
        """
        running = self._running
        if running is None or running.attempt != attempt.digest:
            return None
        if running.build.libraries != build.libraries:
            return None
        running.patience.awaited.set()
        self._running = None
        return running.result.result()

    def end(self) -> None:
        """End the check that runs, if any, and wait for its processes' end."""
        running, self._running = self._running, None
        if running is not None:
            running.patience.cancelled.set()
            running.thread.join()

    def _has_room(self, tools: int) -> bool:
        """Return True if the GPU's memory holds all tools beside a verdict or a timing."""
        referee = self._referee
        room, each = referee.room, sanitize.CONTEXT_BYTES + referee.facts.layouts.state.size
        each += referee.bytes_per_call
        most = max(room.verdict, room.timing(TIMED_ARMS))
        return most + tools * each <= free(referee.task.device.value)


def _is_complete(check: Check, build: Build) -> bool:
    """Return True if a check in the foreground would know no more.

    Beside other work a tool may fail for lack of memory, and a call on fewer rows may have skipped
    the attempt's kernels.
    """
    unknown = [r for r in check.reports if r.outcome is Outcome.UNKNOWN]
    if not all(report.text.startswith((EXCEEDED, UNCONFIRMED)) for report in unknown):
        return False
    return check.rows is None or not sanitize.missed(check.reports, build)
