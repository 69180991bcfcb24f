"""Lock a device: shared for verification, exclusive for timing.

The lock is for judges in several processes that share one device. Verification may run while others
verify; a timing runs while no other judge uses the device. Not covered: processes that do not take
the lock (`measure/system_load.py` detects those).

Invariant: a lock ends with its process, however the process ends. A process that waits for the
exclusive lock gets it before any process that asks later.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DeviceLock:
    """Lock of one device. `lock` is a file, the same for all processes; None if nothing shares the
    device.

    A process that holds the lock must not take it again: it would wait for itself, with `shared` as
    soon as another process waits for `exclusive`.
    """

    lock: Path | None = None

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the device together with others, while no process holds it exclusively."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the device exclusively."""
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _locked(self, operation: int) -> Iterator[None]:
        if self.lock is None:
            yield
            return
        with self.lock.open("a") as device:
            # Every process queues here, and the first in the queue keeps it locked until it has the
            # device. Otherwise verifying processes could follow each other, and a timing could wait
            # forever.
            with self.lock.with_suffix(".door").open("a") as queue:
                fcntl.flock(queue, fcntl.LOCK_EX)
                fcntl.flock(device, operation)
            yield
