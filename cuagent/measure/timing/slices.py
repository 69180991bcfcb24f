"""Hold a device exclusively while samples are taken, in slices of a second or two.

Only sampling needs the device alone. Everything before it (processes, compilers, first calls) runs
without the lock or shares it. Between two repeats the lock is given up if another timing waits and
the slice is over. A repeat is never divided, so the arms of a pair share one slice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from cuagent.device_lock import DeviceLock
from cuagent.durations import Stage

SLICE_S = 1.5
"""Seconds after which a timing gives up the device if another timing waits for it."""

Paused = Callable[[], AbstractContextManager[None]]
"""Function that returns a context in which our processes in the background are stopped."""


class Slices:
    """Exclusive use of a device in slices of SLICE_S, within the context `held`."""

    def __init__(self, device_lock: DeviceLock, paused: Paused) -> None:
        self._lock, self._paused = device_lock, paused
        self._stack = ExitStack()
        self._begun = 0.0
        self.count = 0
        """Number of slices begun so far."""

    @contextmanager
    def held(self, stage: Stage) -> Iterator[None]:
        """Hold the device exclusively within the block; record the duration under `stage`."""
        with self._lock.durations.of(stage):
            self._begin()
            try:
                yield
            finally:
                self._stack.close()

    def give_way(self) -> None:
        """Release the device and acquire it again, if the slice is over and another timing
        waits."""
        if time.monotonic() - self._begun > SLICE_S and self._lock.is_awaited:
            self._stack.close()
            self._begin()

    def _begin(self) -> None:
        # The lock first: a background process that is paused may hold it.
        self._stack.enter_context(self._lock.exclusive())
        self._stack.enter_context(self._paused())
        self._begun = time.monotonic()
        self.count += 1
