"""Let the threads of a process sleep while they wait for each other, instead of spinning.

libgomp's threads spin at the end of each parallel region. That saves microseconds on idle cores. If
other processes use the same cores, a thread spins until the scheduler runs the one that it waits
for: on two cores at a load of 10 EfficientNet took 5 s a call, and 0.3 to 0.8 s in turn with that
where threads sleep. libgomp reads its settings
when it is loaded, before the fork server forks. But it spins only briefly in a process that has
more OpenMP threads than processors (`GOMP_SPINCOUNT` in libgomp's manual: 100 iterations instead of
300,000).

Only for processes that are never timed: a user's process spins.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading

OPENMP = "omp_set_num_threads"


def let_threads_sleep() -> None:
    """Start idle OpenMP threads once, so that the process has more of them than processors.

    They sleep until the process ends. Does nothing with one thread of torch, or with an OpenMP
    library whose symbols are hidden.
    """
    _start_threads(os.getpid())


@functools.cache
def _start_threads(process: int) -> None:
    """Start the threads of this process. A forked child has none of its parent's threads."""
    import torch

    library = ctypes.CDLL(None)
    if torch.get_num_threads() == 1 or not hasattr(library, OPENMP):
        return
    started = threading.Event()
    threading.Thread(target=_hold_threads, args=(library, started), daemon=True).start()
    started.wait()


def _hold_threads(library: ctypes.CDLL, started: threading.Event) -> None:
    """Start a team of OpenMP threads that belongs to this thread, and never return."""
    import torch

    torch.ones(1)  # torch sets the number of threads at the first operator in a thread
    library.omp_set_num_threads((os.cpu_count() or 1) + 1)
    torch.zeros(1 << 20).add_(1)  # in parallel, because the tensor is large
    started.set()
    threading.Event().wait()
