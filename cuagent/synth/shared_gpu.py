"""Let the processes that examine candidate tasks share one GPU: its memory, checks and timings.

A candidate spends most of its time in torch.compile, on a CPU core. So more candidates run than the
GPU's memory has room for; each reserves a slot of the memory during its checks. Checks share the
GPU. A timing has the GPU alone, except for short work without the lock: starting CUDA, calls at the
smallest batch sizes, and the first call of a compiled module.
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
"""Largest GPU memory of a candidate's checks, with fp64 and copies, as a multiple of the limit on
the results of one call."""
POLL_S = 0.02


class SharedGpu:
    """A GPU that several processes use, or, if `lock` is "", a device that is not shared."""

    def __init__(self, lock: str, memory: int) -> None:
        """Create the object without locking. `lock`: path of the lock file that all processes of
        the GPU use. `memory`: limit in bytes on the results of one call."""
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
        """Reserve a slot of the GPU's memory inside this context; free torch's cached memory at the
        end."""
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
        """Return the memory that torch caches to the GPU."""
        if self.path is not None:
            import torch

            torch.cuda.empty_cache()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Use the GPU together with other processes inside this context; `give_way` lets them time
        in between."""
        with self._lock.shared() as give_way:
            self._give_way = give_way
            try:
                yield
            finally:
                self.synchronize()
                self._give_way = lambda: None

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Use the GPU alone inside this context. It must not be nested in `shared`."""
        with self._lock.exclusive():
            yield
            self.synchronize()

    def give_way(self) -> None:
        """Release the shared lock for a moment if another process waits to time, and take it
        again."""
        if self.path is not None and self._lock.is_awaited:
            self.synchronize()
            self._give_way()

    def synchronize(self) -> None:
        if self.path is not None:
            import torch

            torch.cuda.synchronize()


def slots(total: int, memory: int) -> int:
    """Return the number of candidates whose checks fit at the same time into a GPU with `total`
    bytes.

    `memory`: limit in bytes on the results of one call.
    """
    return max(1, total // (PEAK * memory))


def _locked(path: Path) -> TextIO | None:
    """Return the file opened and locked; None if another process has locked it."""
    file = path.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
