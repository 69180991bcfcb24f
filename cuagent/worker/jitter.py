"""Other numbers of threads than usual, and threads that are held up at random moments.

A race between threads shows where one is interrupted between a read and a write. On a quiet machine
that is rare, and with one thread it never happens. So while a candidate with compiled code is
called by itself, its OpenMP regions have 2 to 7 threads, and a thread of ours sends signals to the
others whose handler sleeps. Never in a timed call. It finds mistakes; a candidate can undo it.

Not covered: races that need another order than these interruptions give; code on a GPU.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.task import TreeError, flatten, unflatten

if TYPE_CHECKING:
    from torch import Tensor

THREADS = (3, 2, 5, 7, 4)
NAMES = ("gomp", "libomp", "iomp")
"""In the file names of OpenMP's libraries."""
PAUSE = 44
"""Number of a real-time signal, and with that the microseconds that its handler sleeps: the handler
is the C library's own `usleep`, called with the number of the signal."""
FIRST_S, LONGER, MOST_AT_ONCE = 20e-6, 1.2, 4
"""Between two signals at first, and how much longer from round to round; threads of a round."""
FEWEST_CALLS, MOST_CALLS, REPEATED_S = 4, 16, 1.5e-3
SLOWEST_S = 20e-3
"""Further equal calls, for how long, and for how long at the most."""
_TGKILL = {"x86_64": 234, "aarch64": 131}


class Jitter:
    """Makes contexts for single calls; one of these for each worker."""

    def __init__(self) -> None:
        self._counts = itertools.cycle(THREADS)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._tgkill = _TGKILL.get(os.uname().machine)
        if hasattr(self._libc, "usleep") and self._tgkill is not None:
            self._libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            self._libc.signal.restype = ctypes.c_void_p
            self._libc.signal(PAUSE, ctypes.cast(self._libc.usleep, ctypes.c_void_p))
        else:
            self._tgkill = None

    @contextlib.contextmanager
    def held_up(self) -> Iterator[None]:
        """Calls in this context run with another number of threads, and are interrupted."""
        with _threads(next(self._counts)):
            if self._tgkill is None:
                yield
                return
            ended = threading.Event()
            sender = threading.Thread(target=self._send, args=(ended,), daemon=True)
            sender.start()
            try:
                yield
            finally:
                ended.set()
                sender.join()

    def _send(self, ended: threading.Event) -> None:
        """Hold up some threads, again and again and ever less often: all must go on meanwhile, on
        a busy machine too, where a pause may take milliseconds."""
        own, process, wait = threading.get_native_id(), os.getpid(), FIRST_S
        while not ended.is_set():
            try:
                names = [int(path.name) for path in Path("/proc/self/task").iterdir()]
            except OSError:
                return  # where the sandbox hides it, nothing is held up
            others = [name for name in names if name != own]
            for thread in random.sample(others, min(len(others), MOST_AT_ONCE)):
                self._libc.syscall(self._tgkill, process, thread, PAUSE)
                ended.wait(wait)
            wait *= LONGER


def unsteady(call: Callable[[], Any], first: Any) -> Any:
    """Of further equal calls the output that differs most from `first`; `first` if none does.

    A call of few microseconds is hardly ever interrupted, so it is repeated for a moment.
    """
    kept = _copies(first)
    begun, farthest, chosen = time.perf_counter(), 0.0, kept
    for number in range(MOST_CALLS):
        late = number >= FEWEST_CALLS and time.perf_counter() - begun > REPEATED_S
        if late or kept is None or time.perf_counter() - begun > SLOWEST_S:
            break
        other = _copies(call())
        if other is None:
            return first
        distance = max(map(_distance, kept[0], other[0]), default=0.0)
        if distance > farthest:
            farthest, chosen = distance, other
    return first if chosen is kept or chosen is None else unflatten(*chosen)


def _copies(output: Any) -> tuple[list[Tensor], dict[str, Any]] | None:
    """Its tensors in memory of their own; None for an output of another form."""
    try:
        leaves, spec = flatten(output, "output")
    except TreeError:
        return None
    return [leaf.detach().clone() for leaf in leaves], spec


def _distance(a: Tensor, b: Tensor) -> float:
    """Largest difference; infinite where shapes differ or one is NaN and the other is not."""
    import torch

    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    if torch.equal(a, b) or not a.numel():
        return 0.0
    if a.dtype is torch.bool:
        return 1.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    apart = (a.to(wide) - b.to(wide)).abs()
    return float(apart.masked_fill(a.isnan() & b.isnan(), 0).nan_to_num(nan=math.inf).max())


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    """OpenMP regions of this thread have `count` threads."""
    before = [(library, library.omp_get_max_threads()) for library in _runtimes()]
    for library, _ in before:
        library.omp_set_num_threads(count)
    try:
        yield
    finally:
        for library, usual in before:
            library.omp_set_num_threads(usual)


def _runtimes() -> list[ctypes.CDLL]:
    """OpenMP's libraries in this process: torch may bring its own beside the compiler's."""
    paths = {
        line.split(maxsplit=5)[5]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if any(name in line.rpartition("/")[2] for name in NAMES)
    }
    found = []
    for path in sorted(paths):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path.strip(), mode=os.RTLD_NOLOAD)
            if hasattr(library, "omp_set_num_threads"):
                found.append(library)
    return found
