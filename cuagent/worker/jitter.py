"""Vary the number of OpenMP threads and interrupt threads at random moments.

A race between threads shows if a thread is interrupted between a read and a write. That is rare on
an idle machine and never happens with one thread. So each single call of a candidate with compiled
code runs its OpenMP regions with 2 to 7 threads, while a thread of this module sends signals to the
other threads, whose handler sleeps. It is then repeated with the usual threads and without signals,
because some mistakes show only under these conditions. Timed calls are never disturbed. This finds
mistakes; a candidate can disable it.

Not covered: races that need a different order than these interruptions cause; code on a GPU.
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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuagent.task import TreeError, flatten, unflatten

if TYPE_CHECKING:
    from torch import Tensor

THREADS = (3, 2, 5, 7, 4)
"""Numbers of OpenMP threads, used in rotation."""
NAMES = ("gomp", "libomp", "iomp")
"""Parts of the file names of OpenMP libraries."""
SIGNAL = 44
"""Number of a real-time signal, and the microseconds that its handler sleeps. The handler is the C
library's `usleep`, which receives the signal's number as its argument."""
SIGNAL_INTERVAL_S, INTERVAL_GROWTH, MOST_AT_ONCE = 20e-6, 1.2, 4
"""Seconds between two signals at first, their growth per round, and threads signalled per round."""
LIST_EVERY = 2
"""Rounds of signals between two listings of the process's threads."""
MIN_CALLS, MAX_CALLS, MIN_REPEAT_S = 4, 16, 1.5e-3
"""A call is repeated at least MIN_CALLS times, then until MIN_REPEAT_S seconds have passed, but at
most MAX_CALLS times."""
QUIET_CALLS = 2, 4
"""Least and largest number of repetitions with the usual threads and without interruptions."""
MAX_REPEAT_S = 20e-3
"""Seconds after which no further repetition starts, even if the least number is not reached."""
_TGKILL = {"x86_64": 234, "aarch64": 131}


class Jitter:
    """Runs single calls with an unusual number of OpenMP threads while signals interrupt them.

    A worker has one instance.
    """

    def __init__(self) -> None:
        self._counts = itertools.cycle(THREADS)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libraries: list[ctypes.CDLL] | None = None
        self._loads: int | None = None
        self._tgkill = _TGKILL.get(os.uname().machine)
        if hasattr(self._libc, "usleep") and self._tgkill is not None:
            self._libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
            self._libc.signal.restype = ctypes.c_void_p
            self._libc.signal(SIGNAL, ctypes.cast(self._libc.usleep, ctypes.c_void_p))
        else:
            self._tgkill = None

    @contextlib.contextmanager
    def interrupted(self) -> Iterator[None]:
        """Run the block with the next number of OpenMP threads while signals interrupt all other
        threads."""
        with _threads(self._openmp(), next(self._counts)):
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

    def _openmp(self) -> list[ctypes.CDLL]:
        """Return the OpenMP libraries of this process. The list is refreshed only after a library
        was loaded."""
        loads = _library_loads(self._libc)
        if self._libraries is None or loads is None or loads != self._loads:
            self._libraries, self._loads = _openmp_libraries(self._libc), loads
        return self._libraries

    def _send(self, ended: threading.Event) -> None:
        """Signal randomly chosen threads until `ended` is set, with growing pauses.

        On a busy machine a thread may be delayed by milliseconds for each signal; the growing
        pauses let all threads progress.
        """
        own, process = threading.get_native_id(), os.getpid()
        interval, others = SIGNAL_INTERVAL_S, list[int]()
        for number in itertools.count():
            if ended.is_set():
                break
            if number % LIST_EVERY == 0:
                try:
                    names = map(int, os.listdir("/proc/self/task"))  # noqa: PTH208  (often called)
                except OSError:
                    return  # the sandbox hides the folder: no thread is interrupted
                others = [name for name in names if name != own]
            for thread in random.sample(others, min(len(others), MOST_AT_ONCE)):
                self._libc.syscall(self._tgkill, process, thread, SIGNAL)
                ended.wait(interval)
            interval *= INTERVAL_GROWTH


class RepeatedCall:
    """Repeats a call with the same arguments and stores the output that differs most from the
    first."""

    def __init__(self, call: Callable[[], Any], first: Any) -> None:
        self._call = call
        self._reference = _copies(first)  # the next call may write to the same memory
        self._distance = 0.0
        self.output = first
        """The output that differs most from the first; the first itself if none differs."""

    def repeat(self, least: int, most: int) -> None:
        """Repeat the call between `least` and `most` times.

        A call of a few microseconds is rarely interrupted, so it is repeated for a short time.
        """
        start = time.perf_counter()
        for number in range(most):
            enough = number >= least and time.perf_counter() - start > MIN_REPEAT_S
            late = time.perf_counter() - start > MAX_REPEAT_S
            if enough or late or self._reference is None:
                break
            other = _copies(self._call())
            if other is None:
                break
            distance = max(map(_distance, self._reference[0], other[0]), default=0.0)
            if distance > self._distance:
                self.output, self._distance = unflatten(*other), distance


def _copies(output: Any) -> tuple[list[Tensor], dict[str, Any]] | None:
    """Return clones of an output's tensors and the spec of their nesting; None if the output has
    other values than tensors."""
    try:
        leaves, spec = flatten(output, "output")
    except TreeError:
        return None
    return [leaf.detach().clone() for leaf in leaves], spec


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference of two tensors.

    It is infinite if the shapes differ or only one of two elements is NaN. numpy compares, because
    the rule kernels-only refuses torch's operators in this process.
    """
    import numpy
    import torch

    if a.shape != b.shape or a.dtype != b.dtype:
        return math.inf
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(a.element_size())
    if not a.numel():
        return 0.0
    if bits is not None and numpy.array_equal(a.view(bits).numpy(), b.view(bits).numpy()):
        return 0.0
    if a.dtype is torch.bool:
        return 1.0
    wide = torch.complex128 if a.is_complex() else torch.float64
    left, right = a.to(wide).numpy(), b.to(wide).numpy()
    both = numpy.isnan(left) & numpy.isnan(right)
    with numpy.errstate(invalid="ignore"):
        difference = numpy.where(both | (left == right), 0.0, numpy.abs(left - right))
    return float(numpy.nan_to_num(difference, nan=numpy.inf).max())


@contextlib.contextmanager
def _threads(libraries: Sequence[ctypes.CDLL], count: int) -> Iterator[None]:
    """Set the number of OpenMP threads to `count` within the block."""
    before = [(library, library.omp_get_max_threads()) for library in libraries]
    for library, _ in before:
        library.omp_set_num_threads(count)
    try:
        yield
    finally:
        for library, usual in before:
            library.omp_set_num_threads(usual)


def _openmp_libraries(libc: ctypes.CDLL) -> list[ctypes.CDLL]:
    """Return all OpenMP libraries that this process has loaded; torch's and the compiler's may
    differ."""
    paths = {
        path for path in _loaded_paths(libc) if any(n in path.rpartition("/")[2] for n in NAMES)
    }
    found = []
    for path in sorted(paths):
        with contextlib.suppress(OSError):
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
            if hasattr(library, "omp_set_num_threads"):
                found.append(library)
    return found


class _LoadedObject(ctypes.Structure):
    """`struct dl_phdr_info` of the dynamic linker."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_ushort),
        ("adds", ctypes.c_ulonglong),
    )


_VISIT = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p
)


def _visit(libc: ctypes.CDLL, visitor: Callable[[_LoadedObject], bool]) -> bool:
    """Call `visitor` for each loaded object until it returns True; return False if the C library
    cannot list them."""
    if not hasattr(libc, "dl_iterate_phdr"):
        return False
    libc.dl_iterate_phdr(_VISIT(lambda info, *_: int(visitor(info.contents))), None)
    return True


def _library_loads(libc: ctypes.CDLL) -> int | None:
    """Return how many libraries this process has loaded so far; None if the C library cannot tell.

    Listing them instead takes a millisecond, a tenth of a verdict's processor time.
    """
    adds: list[int] = []

    def first(loaded: _LoadedObject) -> bool:
        adds.append(loaded.adds)
        return True  # end the iteration: every object has the same count

    return adds[0] if _visit(libc, first) and adds else None


def _loaded_paths(libc: ctypes.CDLL) -> list[str]:
    """Return the paths of all loaded libraries.

    /proc/self/maps is read only if the C library lists none: on a machine short of memory the
    sandbox refused it at random, perhaps because the kernel had dropped the folder's inode.
    """
    paths: list[str] = []

    def each(loaded: _LoadedObject) -> bool:
        paths.append(os.fsdecode(loaded.name or b""))
        return False

    if not _visit(libc, each):
        with contextlib.suppress(OSError):
            lines = Path("/proc/self/maps").read_text().splitlines()
            paths += [line.split(maxsplit=5)[5].strip() for line in lines if "/" in line]
    return paths
