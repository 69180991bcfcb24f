"""Hold a device exclusively while torch's autotuning runs its candidate kernels.

Autotuning measures hundreds of kernels for some 50 ms each, with compilation in between. A lock for
each measurement would wait for the device hundreds of times. A lock for the whole autotuning would
keep the device idle while kernels compile: three networks that autotuned at the same time stopped
all timings for 110 s (H100). So the lock is kept between measurements in quick succession, and
released after `IDLE_S` without a measurement, or after `LONGEST_S` if another process waits. Those
that share the device then get a turn of `TURN_S`. A candidate that is not compiled yet is compiled
before the lock is acquired: on an H200 the device was held for up to 7 s while one compiled.
"""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from cuagent.device_lock import DeviceLock

IDLE_S = 0.3
"""Seconds without a measurement after which the device is released. Others that wait lose this time
once; to get the device back costs about 2.5 s with four problems on an H200, in which all others
are stopped."""
LONGEST_S = 1.0
"""Time in seconds after which the device is released between two measurements, if another process
waits for it."""
TURN_S = 2.0
"""Longest time in seconds for which processes that share the device then keep it. Without it they
got 0.3 s of every 6 s: the building of one attempt at VGG16 waited 37 of 65 s (H200)."""
POLL_S = 0.05
"""Seconds between two looks if a process shares the device."""
BENCHMARKER = "torch._inductor.runtime.benchmarking"
"""Module of torch with the object `benchmarker`, which makes all measurements of autotuning."""
MEASURES = ("benchmark", "benchmark_cpu", "benchmark_gpu", "benchmark_gpu_with_cuda_graph")
"""Methods of `benchmarker` that run a kernel. Only the first must exist; the others depend on the
version of torch."""


class TuningLock:
    """The exclusive lock of a device, kept between uses in quick succession."""

    def __init__(self, lock: DeviceLock) -> None:
        self._lock = lock
        self._used_by = threading.RLock()
        """Mutex: held during a use of the device and while the fields below change."""
        self._held: ExitStack | None = None
        self._since = self._last_use = 0.0
        """Times of the monotonic clock at which the device lock was acquired, and last used."""
        self._turn_ends = 0.0
        """Time of the monotonic clock at which the turn of the others ends."""

    @contextmanager
    def use(self) -> Iterator[None]:
        """Hold the device exclusively within the block; a nested use changes nothing."""
        with self._used_by:
            if self._held is None:
                while time.monotonic() < self._turn_ends and self._lock.is_shared:
                    time.sleep(POLL_S)
                self._held = ExitStack()
                self._held.enter_context(self._lock.exclusive())
                self._since = time.monotonic()
                threading.Thread(target=self._release_when_idle, daemon=True).start()
            try:
                yield
            finally:
                self._last_use = time.monotonic()
                if self._last_use - self._since > LONGEST_S and self._is_wanted():
                    self._release()
                    self._turn_ends = self._last_use + TURN_S

    def _is_wanted(self) -> bool:
        """Return True if a process waits for the device, to use it alone or to share it."""
        return self._lock.is_awaited or self._lock.is_shared

    def release(self) -> None:
        """Release the device now, if no use is in progress: no measurement follows soon."""
        with self._used_by:
            self._release()

    def _release(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None

    def _release_when_idle(self) -> None:
        """Release the device lock once it was not used for `IDLE_S`; the function of a background
        thread."""
        left = IDLE_S
        while True:
            time.sleep(left)
            with self._used_by:
                if self._held is None:
                    return
                left = IDLE_S - (time.monotonic() - self._last_use)
                if left <= 0:
                    self._release()
                    return


def tune_exclusively(lock: DeviceLock) -> TuningLock | None:
    """Patch torch so that autotuning holds `lock` exclusively while it runs candidate kernels.

    Returns None if this version of torch cannot be patched. The caller must then hold the lock for
    the whole compilation.
    """
    try:
        benchmarker = importlib.import_module(BENCHMARKER).benchmarker
    except (ImportError, AttributeError):
        return None
    tuning = TuningLock(lock)
    for name in MEASURES:
        method = getattr(benchmarker, name, None)
        if callable(method):
            setattr(benchmarker, name, _within(tuning, method))
    return tuning if callable(getattr(benchmarker, MEASURES[0], None)) else None


def _within(tuning: TuningLock, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def measured(*args: Any, **named: Any) -> Any:
        for value in (*args, *named.values()):
            _compile(value)
        with tuning.use():
            return method(*args, **named)

    return measured


def _compile(measured: Any) -> None:
    """Compile the kernel that the function `measured` runs, if it is one of Triton's that is not
    compiled yet.

    torch gives the method `run` of its `CachingAutotuner`, which would compile in its first call.
    """
    run = measured.func if isinstance(measured, functools.partial) else measured
    kernel = getattr(run, "__self__", None)
    precompile = getattr(kernel, "precompile", None)
    if callable(precompile) and getattr(kernel, "launchers", None) == []:
        precompile()
