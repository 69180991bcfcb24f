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
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cuagent.durations import Durations, Stage
from cuagent.lock_uses import LockUses

GiveWay = Callable[[], None]
"""Function that releases a shared lock if another process waits for the exclusive one.

It returns when the shared lock is acquired again.
"""


@dataclass(frozen=True)
class Sharing:
    """A shared lock that is held; a call gives way (`GiveWay`)."""

    give_way: GiveWay
    awaited: Callable[[], bool]
    """Function that returns True if another process waits for the exclusive lock."""

    def __call__(self) -> None:
        self.give_way()


ALONE = Sharing(lambda: None, lambda: False)
"""Shared lock of a device that no other process uses."""


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

    uses: LockUses = field(default_factory=LockUses, compare=False)
    """Figures of all uses by this process."""

    @property
    def is_awaited(self) -> bool:
        """True if another process waits for the exclusive lock."""
        return self._asked() is not None

    @property
    def is_shared(self) -> bool:
        """True if a process shares the device, or waits until it may."""
        if self.lock is None:
            return False
        with self._sharers.open("a") as sharers:
            try:
                fcntl.flock(sharers, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @property
    def _sharers(self) -> Path:
        """File that every process keeps locked while it shares the device or waits for that."""
        assert self.lock is not None
        return self.lock.with_suffix(".sharers")

    def _asked(self) -> float | None:
        """Return when the process that waits for the exclusive lock began to wait for those that
        share it, as a time of the monotonic clock; None if no process waits."""
        if self.lock is None:
            return None
        with self.lock.with_suffix(".door").open("a+") as queue:
            try:
                # Shared, so that two processes that look at the same time do not see each other.
                fcntl.flock(queue, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                queue.seek(0)
                try:
                    return float(queue.read())
                except ValueError:  # it is being written
                    return time.monotonic()
        return None

    @contextmanager
    def shared(self) -> Iterator[Sharing]:
        """Context that acquires the shared lock: the device is used while no process has it
        exclusively.

        Yields a function that releases and reacquires the lock if a process waits for the exclusive
        one (`Sharing`). Call it only while no work of the `with` block runs on the device.
        """
        stage = self.durations.current
        self.uses.add(stage, shared=1)
        with ExitStack() as stack:
            stretch = stack.enter_context(self._held_shared(stage))

            def give_way() -> None:
                nonlocal stretch
                if self.is_awaited:
                    stack.close()
                    stretch = stack.enter_context(self._held_shared(stage))
                else:
                    stretch.offer()

            yield ALONE if self.lock is None else Sharing(give_way, lambda: self.is_awaited)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Context that acquires the exclusive lock: no other process uses the device."""
        stage = self.durations.current
        with ExitStack() as stack:
            queue_s, drain_s = self._acquire(stack) if self.lock is not None else (0.0, 0.0)
            self.uses.add(
                stage, exclusive=1, queue_s=queue_s, drain_s=drain_s, drain_longest_s=drain_s
            )
            begun = time.monotonic()
            try:
                yield
            finally:
                self.uses.add(stage, exclusive_s=time.monotonic() - begun)

    def _acquire(self, stack: ExitStack) -> tuple[float, float]:
        """Acquire the exclusive lock, which `stack` releases; return the seconds of waiting behind
        other processes that asked for it, and behind those that shared it."""
        assert self.lock is not None
        wish = stack.enter_context(self.lock.with_suffix(".wish").open("a"))
        device = stack.enter_context(self.lock.open("a"))
        with (
            self.durations.of(Stage.WAITING),
            self.lock.with_suffix(".door").open("a") as queue,
        ):
            begun = time.monotonic()
            fcntl.flock(wish, fcntl.LOCK_SH)
            # The first process in the queue keeps the queue locked until it has the device. So
            # a process that has just given the device up cannot take it again first.
            fcntl.flock(queue, fcntl.LOCK_EX)
            fcntl.flock(device, fcntl.LOCK_SH)  # granted when no process has it exclusively
            first = time.monotonic()
            queue.truncate(0)
            queue.write(repr(first))
            queue.flush()
            fcntl.flock(device, fcntl.LOCK_EX)
        return first - begun, time.monotonic() - first

    @contextmanager
    def _held_shared(self, stage: str | None) -> Iterator[_Stretch]:
        if self.lock is None:
            stretch = _Stretch(self, stage)
            try:
                yield stretch
            finally:
                stretch.end()
            return
        with self.lock.open("a") as device, self._sharers.open("a") as sharers:
            with (
                self.durations.of(Stage.WAITING),
                self.lock.with_suffix(".wish").open("a") as wish,
            ):
                fcntl.flock(sharers, fcntl.LOCK_SH)
                # Granted when no process holds the device exclusively or waits to do so.
                fcntl.flock(wish, fcntl.LOCK_EX)
                fcntl.flock(device, fcntl.LOCK_SH)
            stretch = _Stretch(self, stage)
            try:
                yield stretch
            finally:
                stretch.end()


class _Stretch:
    """Time for which a lock is shared without a break, for the figures of its uses."""

    def __init__(self, lock: DeviceLock, stage: str | None) -> None:
        self._lock, self._stage = lock, stage
        self._begun = self._offered = time.monotonic()

    def offer(self) -> None:
        """Note that the lock would have been released for a process that waits."""
        now = time.monotonic()
        self._lock.uses.add(self._stage, longest_s=now - self._offered)
        self._offered = now

    def end(self) -> None:
        """Note the release of the lock."""
        self.offer()
        asked, now = self._lock._asked(), time.monotonic()
        kept = now - max(asked, self._begun) if asked is not None else 0.0
        self._lock.uses.add(
            self._stage, shared_s=now - self._begun, kept_s=kept, kept_longest_s=kept
        )


UNSHARED = DeviceLock()
"""Lock without effect, for a device that no other judge uses; its waiting time is not recorded."""
