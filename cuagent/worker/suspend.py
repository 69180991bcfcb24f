"""Stop a session's processes between commands, so that they compute nothing outside the timed
calls.

The process group is stopped as a whole. Processes that left the group are found among the
descendants. Daemons, which are no descendants any more, are found among the children of the
subreaper and are never resumed. A process that still runs may wake another one. So processes count
as stopped only when two scans in a row find the same ones, all stopped. One thread of a process
takes the signal and stops the others, so on a busy machine they run until it is scheduled.

Not covered: work that was queued on a GPU before, which continues there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

MAX_SCANS = 200
"""Number of scans of the processes after which `stop` gives up with a SuspendError."""
PAUSE_S, LONGEST_PAUSE_S = 2e-4, 0.01
"""Seconds between the first two scans, and at most between later ones.

On a busy machine a process stops only when it is scheduled next, so all scans together take more
than a second.
"""
RUNNING = frozenset("RS")
"""States of a thread in proc(5) in which it runs or may start to run at any event."""


class SuspendError(Exception):
    """Error: processes multiply, or wake each other, faster than they can be stopped."""

    def __init__(self, message: str, outside_group: Collection[int] = ()) -> None:
        """`outside_group` are the descendants outside the group that may be stopped now."""
        super().__init__(message)
        self.outside_group = outside_group


def stop(pid: int, subreaper: int, sessions: Collection[int]) -> set[int]:
    """Stop the process group `pid` and its descendants; return the descendants outside the group.

    Daemons are stopped but not returned. `sessions` are the children of the subreaper that must not
    be taken for daemons. Raises SuspendError if several processes keep running; some are stopped
    then.
    """
    before: set[int] | None = None
    outside: set[int] = set()
    for scan in range(MAX_SCANS):
        _send(pid, signal.SIGSTOP, group=True)
        daemons = set(_children(subreaper)) - set(sessions)
        daemons |= {process for daemon in daemons for process in descendants(daemon)}
        own = set(descendants(pid))
        found = own | daemons
        if not found and not (len(threads(pid)) > 1 and _runs(pid)):
            return set()
        for process in found:
            _send(process, signal.SIGSTOP)
        outside = {process for process in own if _group(process) != pid}
        if found == before and not any(map(_runs, (pid, *found))):
            return outside
        before = found
        time.sleep(max(PAUSE_S, min(PAUSE_S * 1.05**scan, LONGEST_PAUSE_S)))
    if not before:
        return set()  # nothing resumes a single process, which stops as soon as it is scheduled
    raise SuspendError("the candidate's processes do not stop", outside)


def resume(pid: int, outside_group: Collection[int]) -> None:
    """Continue the process group `pid` and the processes `outside_group` that `stop` returned."""
    for process in outside_group:
        _send(process, signal.SIGCONT)
    _send(pid, signal.SIGCONT, group=True)


def process_tree(pid: int, subreaper: int, sessions: Collection[int]) -> set[int]:
    """Return the ids of `pid`, its descendants and its daemons. Parameters as in `stop`."""
    daemons = set(_children(subreaper)) - set(sessions)
    return {process for one in (pid, *daemons) for process in (one, *descendants(one))}


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that `pid` has started, those that they have started, and so on."""
    for child in _children(pid):
        yield child
        yield from descendants(child)


def _children(pid: int) -> list[int]:
    """Return the child processes of all threads of `pid`; [] if `pid` has ended or the kernel does
    not list children."""
    found: list[int] = []
    for thread in threads(pid):
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


def _runs(pid: int) -> bool:
    for thread in threads(pid):
        with contextlib.suppress(OSError):
            # The state follows the process name, which stands in parentheses and may hold any text.
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] in RUNNING:
                return True
    return False


def threads(pid: int) -> list[Path]:
    """Return the folders of the kernel with the state of each thread of a process; [] if it has
    ended."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _group(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getpgid(pid)
    return None


def _send(pid: int, number: signal.Signals, *, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)
