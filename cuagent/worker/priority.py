"""Lower the priority of compilers that work for a later timing.

torch.compile starts a compiler process for each processor, so that an attempt that is built
meanwhile would get a small share of the processors. Only the processes that a session starts are
changed: nobody without privileges may raise a priority again, and the session itself is timed.
"""

from __future__ import annotations

import contextlib
import os

from cuagent.worker.suspend import descendants, threads

NICE = 10
"""Niceness of a compiler in the background. A process of normal priority gets nine times as much of
a processor."""


def lower_compilers(pid: int) -> None:
    """Give all processes that the process `pid` has started the niceness NICE."""
    for process in descendants(pid):
        for thread in threads(process):
            with contextlib.suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE)
