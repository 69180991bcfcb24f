"""Lock a device between processes: shared for verification, exclusive for timing.

Judges in several processes may share one device. Verification may run while others verify; a timing
runs while no other judge uses the device. Not covered: processes that do not acquire the lock
(`measure/system_load.py` detects those).

A timing waits until all verifications have ended or released the lock, and the device idles
meanwhile. So all timings that wait then run one after another, before any verification continues.
The verifications wait for a bounded time only, because each process does other work between two of
its timings.

Invariant: a lock ends with its process, however the process ends. A process that waits for the
exclusive lock gets it before any process that asks later, and before all that ask to share.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cuagent.durations import Durations, Stage

GiveWay = Callable[[], None]
"""Function that releases a shared lock if another process waits for the exclusive one.

It returns when the shared lock is acquired again.
"""


@dataclass(frozen=True)
class DeviceLock:
    """Lock of one device between processes, through the file `lock`; None if no other process uses
    it.

    A process that has acquired the lock must not acquire it again, because it would wait for
    itself. That is also true for two `shared` locks, as soon as another process waits for
    `exclusive`.
    """

    lock: Path | None = None
    durations: Durations = field(default_factory=Durations, compare=False)
    """Durations of the judge that uses the lock; the waiting time is added to Stage.WAITING."""

    @property
    def is_awaited(self) -> bool:
        """True if another process waits for the exclusive lock."""
        if self.lock is None:
            return False
        with self.lock.with_suffix(".door").open("a") as queue:
            try:
                fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def shared(self) -> Iterator[GiveWay]:
        """Context that acquires the shared lock: the device is used while no process has it
        exclusively.

        Yields a function that releases and reacquires the lock if a process waits for the exclusive
        one. Call it only while no work of the `with` block runs on the device.
        """
        with ExitStack() as stack:
            stack.enter_context(self._held_shared())

            def give_way() -> None:
                if self.is_awaited:
                    stack.close()
                    stack.enter_context(self._held_shared())

            yield give_way

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Context that acquires the exclusive lock: no other process uses the device."""
        if self.lock is None:
            yield
            return
        with (
            self.lock.with_suffix(".wish").open("a") as wish,
            self.lock.open("a") as device,
        ):
            with (
                self.durations.of(Stage.WAITING),
                self.lock.with_suffix(".door").open("a") as queue,
            ):
                fcntl.flock(wish, fcntl.LOCK_SH)
                # The first process in the queue keeps the queue locked until it has the device. So
                # a process that has just given the device up cannot take it again first.
                fcntl.flock(queue, fcntl.LOCK_EX)
                fcntl.flock(device, fcntl.LOCK_EX)
            yield

    @contextmanager
    def _held_shared(self) -> Iterator[None]:
        if self.lock is None:
            yield
            return
        with self.lock.open("a") as device:
            with (
                self.durations.of(Stage.WAITING),
                self.lock.with_suffix(".wish").open("a") as wish,
            ):
                # Granted when no process holds the device exclusively or waits to do so.
                fcntl.flock(wish, fcntl.LOCK_EX)
                fcntl.flock(device, fcntl.LOCK_SH)
            yield


UNSHARED = DeviceLock()
"""Lock without effect, for a device that no other judge uses; its waiting time is not recorded."""
