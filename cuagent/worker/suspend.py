"""Stop a session's processes while it has nothing to do, so that nothing is computed off the clock.

The group is stopped as a whole; what left the group is found among the descendants, and what left
those too (a daemon) among the children of the subreaper. A daemon is never started again. Where
there are several processes, one that still runs may wake another: they count as stopped once two
looks in a row find the same ones, all at rest. Not covered: work that was queued on a GPU before,
which goes on there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

LOOKS = 200
PAUSE_S = 2e-4
"""Between two looks."""
RUNNING = frozenset("RS")
"""States of a thread that runs, or would at any event."""


class SuspendError(Exception):
    """The processes multiply, or wake each other, faster than they can be stopped."""


def stop(pid: int, subreaper: int, known: Collection[int]) -> set[int]:
    """Stop the group `pid` and all that came of it; the processes outside it, but for daemons.

    `known` are the children of the subreaper that are sessions themselves. Raises RestlessError.
    """
    before: set[int] | None = None
    for _ in range(LOOKS):
        _send(pid, signal.SIGSTOP, group=True)
        strays = set(_children(subreaper)) - set(known)
        strays |= {process for stray in strays for process in _descendants(stray)}
        own = set(_descendants(pid))
        found = own | strays
        if not found:
            return set()
        for process in found:
            _send(process, signal.SIGSTOP)
        if found == before and not any(map(_runs, (pid, *found))):
            return {process for process in own if _group(process) != pid}
        before = found
        time.sleep(PAUSE_S)
    raise SuspendError("its processes do not stop")


def resume(pid: int, apart: Collection[int]) -> None:
    """Let the group run on, and the processes that `stop` found outside it."""
    for process in apart:
        _send(process, signal.SIGCONT)
    _send(pid, signal.SIGCONT, group=True)


def family(pid: int, subreaper: int, known: Collection[int]) -> set[int]:
    """All processes that came of `pid`, also those that left its group; arguments as of `stop`."""
    strays = set(_children(subreaper)) - set(known)
    return {process for one in (pid, *strays) for process in (one, *_descendants(one))}


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    """Of every thread of a process; none where it is gone, or the kernel does not tell."""
    found: list[int] = []
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


def _runs(pid: int) -> bool:
    for thread in _threads(pid):
        with contextlib.suppress(OSError):
            # The name before it, in parentheses, may hold anything.
            if (thread / "stat").read_text().rpartition(")")[2].split()[0] in RUNNING:
                return True
    return False


def _threads(pid: int) -> list[Path]:
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
