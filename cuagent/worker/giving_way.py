"""Run commands of a process, and stop it while another process needs the device alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from cuagent.device_lock import Sharing
from cuagent.worker.driven_process import DrivenProcess

POLL_S = 0.02
"""Seconds between two looks if another process waits for the device."""
DRAIN_S = 0.3
"""Seconds to wait until a GPU has finished the work that a stopped process had queued. Autotuning
queues 0.1 s."""


def run_giving_way(work: Callable[[], None], process: DrivenProcess, sharing: Sharing) -> None:
    """Call `work`, which sends commands to `process`, in a thread; raise its exception.

    The device is held by `sharing`. While another process waits for it, `process` is stopped and
    the device is given away.
    """
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(work)
        while wait([done], POLL_S).not_done:
            if sharing.awaited():
                _give_way(process, sharing)
    done.result()


def _give_way(process: DrivenProcess, sharing: Sharing) -> None:
    try:
        if process.pause():
            time.sleep(DRAIN_S)
            sharing()
    finally:
        process.unpause()
