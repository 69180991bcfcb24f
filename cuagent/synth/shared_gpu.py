"""Let the processes that examine candidate tasks share one GPU: its memory, checks and timings.

A candidate spends most of its time in torch.compile, on a CPU core. So more candidates run than the
GPU's memory has room for; each reserves the memory that its checks need. Checks share the GPU. A
timing has the GPU alone, except for short work without the lock: starting CUDA, calls at the
smallest batch sizes, and the first call of a compiled module.

Invariant: a process that waits for memory holds no lock and has no memory reserved, so waiting ends
when the others finish.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO
from uuid import uuid4

from cuagent.device_lock import DeviceLock
from cuagent.durations import Durations, Stage
from cuagent.synth.progress import Doing, Progress

USABLE = 0.85
"""Share of the GPU's memory that can be reserved. The rest is for the CUDA contexts of all
processes and for work at the smallest batch sizes."""
POLL_S = 0.02


class SharedGpu:
    """A GPU that several processes use, or, if `lock` is "", a device that is not shared."""

    def __init__(self, lock: str, progress: Progress | None = None) -> None:
        """Create the object without locking. `lock`: path of the lock file that all processes of
        the GPU use. `progress`: where the use of the GPU is published."""
        self.path = Path(lock) if lock else None
        self.waited = Durations()
        self.progress = progress or Progress()
        self._lock = DeviceLock(self.path, self.waited)
        self._give_way: Callable[[], None] = lambda: None
        self._reserved: Path | None = None
        self._file: TextIO | None = None

    @property
    def waited_s(self) -> float:
        """Seconds that this process has waited for the GPU or for memory."""
        return self.waited.seconds(Stage.WAITING)

    @contextmanager
    def memory(self, size: int | None) -> Iterator[None]:
        """Reserve `size` bytes of the GPU's memory inside this context, or all memory if None; free
        torch's cached memory at the end.

        After an error the memory stays reserved until the process ends, because the error keeps
        tensors alive. Contexts must not be nested.
        """
        if self.path is None:
            yield
            return
        self._reserve(self.path, size)
        yield
        self.free()
        self._release()

    def resize(self, size: int) -> None:
        """Change the reserved memory to `size` bytes, inside `memory`.

        To enlarge it, everything is released first. The caller must not use memory then.
        """
        if self.path is None or self._reserved is None:
            return
        self.free()
        if size > _size(self._reserved):
            self._release()
            self._reserve(self.path, size)
        else:
            self._reserved = self._reserved.rename(_named(self._reserved, size))
            self.progress.reserve(size)

    def _reserve(self, path: Path, size: int | None) -> None:
        import torch

        usable = int(USABLE * torch.cuda.mem_get_info()[1])
        size = usable if size is None else min(size, usable)
        self._begin(Doing.AWAITS_MEMORY)
        with self.waited.of(Stage.WAITING):
            self._file = self._await_memory(path, size, usable)
        self._begin(Doing.WORKING)
        self.progress.reserve(size)

    def _release(self) -> None:
        assert self._reserved is not None
        assert self._file is not None
        self._reserved.unlink()
        self._reserved = None
        self._file.close()
        self.progress.reserve(0)

    def _await_memory(self, path: Path, size: int, usable: int) -> TextIO:
        """Wait until `size` bytes can be reserved. Return the locked file that reserves them."""
        folder = path.with_suffix(".memory")
        folder.mkdir(exist_ok=True)
        # The first process in the queue keeps this lock until it has its memory. So a process that
        # needs much memory is not overtaken.
        with path.with_suffix(".queue").open("a") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            while sum(map(_reserved_in, folder.iterdir())) > usable - size:
                time.sleep(POLL_S)
            self._reserved = folder / f"{size}.{uuid4().hex}"
            file = self._reserved.open("x")
            fcntl.flock(file, fcntl.LOCK_EX)
            return file

    def free(self) -> None:
        """Return the memory that torch caches to the GPU."""
        if self.path is not None:
            import torch

            torch.cuda.empty_cache()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Use the GPU together with other processes inside this context; `give_way` lets them time
        in between."""
        self._begin(Doing.AWAITS_SHARING)
        with self._lock.shared() as give_way:
            self._give_way = give_way
            self._begin(Doing.SHARING)
            try:
                yield
            finally:
                self.synchronize()
                self._give_way = lambda: None
                self._begin(Doing.WORKING)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Use the GPU alone inside this context. It must not be nested in `shared`."""
        self._begin(Doing.AWAITS_TIMING)
        with self._lock.exclusive():
            self._begin(Doing.TIMING)
            try:
                yield
            finally:
                self.synchronize()
                self._begin(Doing.WORKING)

    def give_way(self) -> None:
        """Release the shared lock for a moment if another process waits to time, and take it
        again."""
        if self.progress.doing is not Doing.SHARING:
            return
        if self._lock.is_awaited:
            self.synchronize()
            self._begin(Doing.AWAITS_SHARING)
            self._give_way()
        self._begin(Doing.SHARING)

    def _begin(self, doing: Doing) -> None:
        if self.path is not None:
            self.progress.begin(doing)

    def synchronize(self) -> None:
        if self.path is not None:
            import torch

            torch.cuda.synchronize()


def _named(path: Path, size: int) -> Path:
    """Return the path of the file that reserves `size` bytes, from its path so far."""
    return path.with_name(f"{size}.{path.name.partition('.')[2]}")


def _size(path: Path) -> int:
    return int(path.name.partition(".")[0])


def _reserved_in(path: Path) -> int:
    """Return the bytes that a file reserves; 0 if its process has ended, and remove the file."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except (BlockingIOError, FileNotFoundError):  # not found: renamed or removed at this moment
        return _size(path)
    return 0
