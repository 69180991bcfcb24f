"""Measure the seconds that one process spends in each stage of its work.

A stage that begins inside another one interrupts it, so each second of a thread is counted for one
stage only. Stages of different threads overlap.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class Stage(StrEnum):
    """Part of the work on one task, whose duration is measured separately."""

    CERTIFYING = "certifying"
    """Tests if a benchmark's problem has a trivial answer. They run during `OPENING`."""
    OPENING = "opening"
    """Starting the trusted processes, and describing and examining the task."""
    GENERATION = "generation"
    """Waiting for the model's replies; for the expert: capturing the graph and generating code. In
    a benchmark the graph is captured while rungs compile."""
    BUILDING = "building"
    """Compiling an attempt's sources."""
    VERIFYING = "verifying"
    SANITIZING = "sanitizing"
    """Checking memory accesses and data races."""
    WAITING = "waiting"
    """Waiting for the device lock."""
    OPENING_ARMS = "opening_arms"
    """Starting the processes of a timing, and waiting for torch.compile."""
    QUICK_TIMING = "quick_timing"
    RECORD_TIMING = "record_timing"
    LADDER = "ladder"
    """Timing the rungs of the ladder."""
    PROFILING = "profiling"
    """Profiling, and measuring the device's bandwidth and arithmetic rate."""
    COMPILING_AHEAD = "compiling_ahead"
    """Compiling rungs before their processes open.

    This runs without the device lock, or in the background of other stages.
    """
    AUTOTUNING = "autotuning"
    """Compiling rungs with autotuning before their processes open."""


class Durations:
    """Seconds by stage; several threads may share one object.

    Pickling it for another process gives an empty one.
    """

    def __init__(self) -> None:
        self.observe: Callable[[Stage, float], None] | None = None
        """Callback at the end of a stage: (stage, its seconds without nested stages)."""
        self._seconds: dict[Stage, float] = {}
        self._lock = threading.Lock()
        self._local = threading.local()

    def __reduce__(self) -> tuple[type[Durations], tuple[()]]:
        return Durations, ()

    @contextmanager
    def of(self, stage: Stage) -> Iterator[None]:
        """Context whose time is counted for `stage`, without the stages nested in it."""
        stack: list[tuple[Stage, list[float]]] = self._local.__dict__.setdefault("stack", [])
        inner = [0.0]
        stack.append((stage, inner))
        begun = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - begun
            stack.pop()
            if stack:
                stack[-1][1][0] += seconds
            self.add(stage, seconds - inner[0])

    @property
    def current(self) -> Stage | None:
        """The stage of the calling thread: the innermost one that has begun; None outside of all
        stages."""
        stack = self._local.__dict__.get("stack")
        return stack[-1][0] if stack else None

    def add(self, stage: Stage, seconds: float) -> None:
        """Add `seconds`, which the caller measured, to `stage`."""
        with self._lock:
            self._seconds[stage] = self._seconds.get(stage, 0.0) + seconds
        if self.observe is not None:
            self.observe(stage, seconds)

    def seconds(self, stage: Stage) -> float:
        """Return the seconds of one stage so far."""
        with self._lock:
            return self._seconds.get(stage, 0.0)

    def to_json(self) -> dict[str, float]:
        """Return {"opening_s": seconds, ...} in the order of the stages, without those that did not
        occur.
        """
        with self._lock:
            found = dict(self._seconds)
        return {f"{stage}_s": round(found[stage], 3) for stage in Stage if stage in found}
