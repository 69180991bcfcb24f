"""Let the processes of several candidates share one GPU: memory, checks and timings.

A candidate spends most of its time in torch.compile, on a processor. So there are more candidates
than the GPU's memory has room for: one with large tensors holds a slot until its checks end. Checks
share the GPU. A timing has it alone, except for short work that takes no lock: starting CUDA, calls
at the smallest batch sizes, and the first call of a compiled module.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from cuagent.device_lock import DeviceLock
from cuagent.durations import Durations, Stage

PEAK = 8
"""Memory of a candidate's checks, in fp64 and with copies, as a multiple of the limit on results.
"""
POLL_S = 0.02


class SharedGpu:
    """A GPU that other processes use too, or a device that is not shared if `lock` is ""."""

    def __init__(self, lock: str, memory: int) -> None:
        """`lock` is a file, the same for all processes of the GPU. `memory` is the limit in bytes
        on the results of one call."""
        self.path = Path(lock) if lock else None
        self.memory = memory
        self.waited = Durations()
        self._lock = DeviceLock(self.path, self.waited)
        self._give_way: Callable[[], None] = lambda: None

    @property
    def waited_s(self) -> float:
        """Seconds that this process has waited for the GPU or for memory."""
        return self.waited.seconds(Stage.WAITING)

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold memory for one candidate's checks; give back all that is not in use at the end."""
        if self.path is None:
            yield
            return
        import torch

        total = torch.cuda.mem_get_info()[1]
        paths = [self.path.with_suffix(f".{n}") for n in range(slots(total, self.memory))]
        with self.waited.of(Stage.WAITING):
            while not (held := next(filter(None, map(_locked, paths)), None)):
                time.sleep(POLL_S)
        try:
            yield
        finally:
            self.free()
            held.close()

    def free(self) -> None:
        """Give memory that torch caches back to the GPU."""
        if self.path is not None:
            import torch

            torch.cuda.empty_cache()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Hold the GPU together with others; `give_way` lets timings of others run in between."""
        with self._lock.shared() as give_way:
            self._give_way = give_way
            try:
                yield
            finally:
                self.synchronize()
                self._give_way = lambda: None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the GPU alone. Not within `shared`."""
        with self._lock.exclusive():
            yield
            self.synchronize()

    def give_way(self) -> None:
        """Let another process time now if one waits for it."""
        if self.path is not None and self._lock.is_awaited:
            self.synchronize()
            self._give_way()

    def synchronize(self) -> None:
        if self.path is not None:
            import torch

            torch.cuda.synchronize()


def slots(total: int, memory: int) -> int:
    """Return the number of candidates whose checks fit on a GPU with `total` bytes at a time."""
    return max(1, total // (PEAK * memory))


def _locked(path: Path) -> TextIO | None:
    """Return the locked file; None if another process holds it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
