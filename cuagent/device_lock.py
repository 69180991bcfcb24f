"""Taking turns on a device: many verify at once, who times is alone.

For: judges in several processes that share one device. What only has to be right goes on beside
others; a clock is read while nothing else of ours computes there.
Not covered: processes that do not ask (`others.py` tells of those).
Invariant: a lock ends with its process, however that ended, and whoever waits to be alone gets the
device before anybody who asks later.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DeviceLock:
    """`lock`: a file for each device, the same for all who share it; None has it alone anyway.

    Who is in one of the two must enter neither: they would wait for themselves, in `shared` as soon
    as somebody else waits to be alone.
    """

    lock: Path | None = None

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Beside others, and beside no timing."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Beside nobody."""
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _locked(self, operation: int) -> Iterator[None]:
        if self.lock is None:
            yield
            return
        with self.lock.open("a") as device:
            # All come in by one door, and who waits for the device keeps it shut: those who verify
            # would else follow each other, and a timing wait for ever.
            with self.lock.with_suffix(".door").open("a") as queue:
                fcntl.flock(queue, fcntl.LOCK_EX)
                fcntl.flock(device, operation)
            yield
