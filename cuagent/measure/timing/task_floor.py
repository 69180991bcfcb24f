"""The floor of a task: its work, counted once, divided by the ceilings of its device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

from cuagent.device_lock import ALONE, Sharing
from cuagent.measure.roofline.ceilings import Ceilings, ceilings
from cuagent.measure.roofline.count import count
from cuagent.measure.roofline.model import Roofline, Work
from cuagent.task import Device, Task, TaskError
from cuagent.timing import Arm, Floor
from cuagent.worker import ForkServer

RECENT_S = 600.0
"""Seconds for which ceilings that were measured again count for all tasks of a device. A suspect
time is not judged by them: the ceilings are measured again."""


class TaskFloor:
    """Computes the floor of one task, for all timings of a timer."""

    def __init__(
        self,
        task: Task,
        fork_server: ForkServer,
        shared: Callable[[], AbstractContextManager[Sharing]],
        exclusive: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Store the task and the contexts of the device lock.

        Work is counted within `shared()`, and ceilings are measured within `exclusive()`.
        """
        self.task = task
        self.fork_server = fork_server
        self._shared = shared
        self._exclusive = exclusive
        self._work: Work | None = None
        self._unit = ""
        self._failed = False
        self._roofline: Roofline | None = None
        self._remeasured = False

    def count(self, sharing: Sharing = ALONE) -> Work | None:
        """Return the task's work, counted at the first call; None if counting failed.

        Counting runs in a separate process for some seconds. It may fail because other users of the
        device occupy memory. If it was not called before, the first timing calls it. The device is
        held by `sharing`.
        """
        if self._work is None:
            with suppress(TaskError):
                self._work, self._unit = count(self.task, self.fork_server, sharing)
        return self._work

    def prepare(self, sharing: Sharing) -> None:
        """Count the work before the first timing, which a counting process would disturb."""
        if self._work is None and not self._failed:
            self._failed = self.count(sharing) is None

    @property
    def counted(self) -> Work | None:
        """The task's work, if it was counted already; else None."""
        return self._work

    def of(self, arms: Sequence[Arm]) -> Floor | None:
        """Return the floor; None if the work could not be counted.

        If the time of one of the `arms` is below the floor, the ceilings are measured again.
        """
        if self._roofline is None and not self._failed:
            with self._shared() as sharing:
                self.prepare(sharing)
            if self._work is not None:
                # On a GPU each timed call follows a write of more than the caches (`repeats`).
                on_gpu = self.task.device is Device.CUDA
                self._roofline = Roofline(self._work, self._ceilings(), self._unit, evicts=on_gpu)
        if self._roofline is None:
            return None
        quickest = min((arm.median for arm in arms if arm.samples), default=float("inf"))
        beaten = self._roofline.beaten(quickest) and not self._remeasured
        # A candidate is not suspected because of ceilings measured while the memory was slow.
        suspect = self._roofline.suspect(quickest)
        if beaten or suspect:
            self._remeasured = True
            found = self._ceilings(remeasure=True, recent_s=0.0 if suspect else RECENT_S)
            self._roofline = replace(self._roofline, ceilings=found)
        return self._roofline.timing_floor

    def _ceilings(self, *, remeasure: bool = False, recent_s: float = 0.0) -> Ceilings:
        device = self.task.device
        return ceilings(device, remeasure=remeasure, recent_s=recent_s, alone=self._exclusive)
