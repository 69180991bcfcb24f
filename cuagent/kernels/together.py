"""Compile the Triton kernels of a module in parallel, before their first launches.

A launch compiles its own kernel, which takes about a second, so the first call of a network of many
kernels would compile one after another. This file travels with exported packages and imports
nothing of cuagent.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

MOST_THREADS = 16
"""Largest number of kernels that are compiled at the same time; each takes some 100 MB."""
_STARTED: set[Callable[[], None]] = set()


def compile_together(warm_ups: Callable[[], None]) -> None:
    """Call `warm_ups`, which calls `warmup` of Triton kernels, and compile these kernels in
    parallel.

    Later calls with the same function do nothing. The function is not called while torch.compile
    traces, nor with a version of Triton that cannot compile in parallel. Errors are suppressed: the
    launch of the kernel raises them again.
    """
    import torch

    if torch.compiler.is_compiling() or warm_ups in _STARTED:
        return
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return
    _STARTED.add(warm_ups)
    with suppress(Exception):
        from triton import AsyncCompileMode

        threads = min(len(os.sched_getaffinity(0)), MOST_THREADS)
        with ThreadPoolExecutor(threads) as pool, AsyncCompileMode(pool, ignore_errors=True):
            warm_ups()
