"""Lock a device: shared for verification, exclusive for timing.

The lock is for judges in several processes that share one device. Verification may run while others
verify; a timing runs while no other judge uses the device. Not covered: processes that do not take
the lock (`measure/system_load.py` detects those).

A timing waits until all verifications have ended or given way, and the device idles meanwhile. So
all timings that wait then run one after another, before any verification goes on. The verifications
wait for a bounded time only, because each process does other work between two of its timings.

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
"""Function that gives up a shared device if another process waits to use it exclusively. It returns
when the device is held again."""


@dataclass(frozen=True)
class DeviceLock:
    """Lock of one device. `lock` is a file, the same for all processes; None if nothing shares the
    device.

    A process that holds the lock must not take it again, because it would wait for itself. Two
    `shared` holds block too, as soon as another process waits for `exclusive`.
    """

    lock: Path | None = None
    durations: Durations = field(default_factory=Durations, compare=False)
    """Durations of the judge that uses the lock. The time spent waiting for the lock is added to
    them."""

    @property
    def is_awaited(self) -> bool:
        """Return True if another process waits for the device exclusively, or is about to get
        it."""
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
        """Hold the device together with others, while no process holds it exclusively.

        Yields a function that lets another process use the device if one waits to hold it
        exclusively. Call it only while no work of the `with` block runs on the device.
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
        """Hold the device exclusively."""
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
"""Lock of a device that no other judge shares, for work whose duration is not recorded."""
