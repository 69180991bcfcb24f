"""Stop processes that work on the device while another process needs it alone."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from cuagent.device_lock import ALONE, GiveWay, Sharing
from cuagent.worker import suspend
from cuagent.worker.channel import receive_message
from cuagent.worker.driven_process import DrivenProcess
from cuagent.worker.fork_server import Child, ForkServer

POLL_S = 0.02
"""Seconds between two looks if another process waits for the device."""
DRAIN_S = 0.3
"""Seconds to wait until a GPU has finished the work that a stopped process had queued. Autotuning
queues 0.1 s. Longer work of a candidate is not waited for: it cannot be seen, slows all interleaved
arms of another judge's timing, and gains nothing for the candidate."""


def run_giving_way(work: Callable[[], None], process: DrivenProcess, sharing: Sharing) -> float:
    """Call `work`, which sends commands to `process`, in a thread; raise its exception.

    The device is held by `sharing`. While another process waits for it, `process` is stopped and
    the device is given away. Returns the seconds of these breaks. An interrupt ends `process`.
    """
    if sharing is ALONE:
        work()
        return 0.0
    breaks_s = 0.0
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(work)
        try:
            while wait([done], POLL_S).not_done:
                if sharing.awaited():
                    begun = time.monotonic()
                    give_way_beside((process,), sharing)
                    breaks_s += time.monotonic() - begun
        except BaseException:
            process.close()  # so that the thread ends
            raise
    done.result()
    return breaks_s


def receive_from_child(
    fork_server: ForkServer, child: Child, sharing: Sharing, limit_s: float
) -> tuple[dict[str, Any], list[int]] | None:
    """Return the next message of a trusted child, or None at its end; see `await_child`."""
    await_child(fork_server, child, sharing, limit_s)
    return receive_message(child.channel)


def await_child(fork_server: ForkServer, child: Child, sharing: Sharing, limit_s: float) -> None:
    """Wait until a trusted child has sent a message, or has ended.

    The device is held by `sharing`. While another process waits for it, the child is stopped and
    the device is given away. Raises TimeoutError if no message arrives within `limit_s` seconds,
    without those in which the child was stopped.
    """
    while True:
        begun = time.monotonic()
        poll_s = limit_s if sharing is ALONE else min(limit_s, POLL_S)
        if select.select([child.channel], [], [], max(0.0, poll_s))[0]:
            return
        limit_s -= time.monotonic() - begun
        if limit_s <= 0:
            raise TimeoutError
        if sharing.awaited():
            _give_way_without(fork_server, child, sharing)


def _give_way_without(fork_server: ForkServer, child: Child, give_way: GiveWay) -> None:
    """Call `give_way` while a trusted child is stopped. If it cannot be stopped, the device is
    kept."""
    try:
        outside = fork_server.suspend(child)
    except suspend.SuspendError as error:
        suspend.resume(child.pid, error.outside_group)
        return
    try:
        time.sleep(DRAIN_S)
        give_way()
    finally:
        suspend.resume(child.pid, outside)


def give_way_beside(processes: Sequence[DrivenProcess], give_way: GiveWay) -> None:
    """Call `give_way` while `processes` are stopped. If one cannot be stopped, the device is kept.

    A process between two commands is stopped too, because another thread may send the next one
    meanwhile.
    """
    computed = any(process.may_compute for process in processes)
    try:
        stopped = [process.pause() for process in processes]
        if all(stopped):
            if computed:
                time.sleep(DRAIN_S)
            give_way()
    finally:
        for process in processes:
            process.unpause()
