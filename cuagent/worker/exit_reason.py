"""How the end of a worker's process is told, in one line."""

from __future__ import annotations

import contextlib
import os
import re
import signal

from cuagent.worker.channel import Status


def how_it_died(wait_status: int) -> str:
    """By which signal, or with which status."""
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
        return f"killed by signal {number}"
    return f"left with exit status {os.WEXITSTATUS(wait_status)}"


_OWN_FRAME = re.compile(r'^ *File "([^/<"][^"]*)", line (\d+)', re.MULTILINE)
_EXCEPTIONS = (
    Status.IMPORT_FAILED,
    Status.CONSTRUCT_FAILED,
    Status.STATE_MISMATCH,
    Status.RAISED,
)


def conclusion(status: Status, text: str) -> str:
    """The last line; that of an exception behind `file:line` of the candidate's own, if known."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1][:300] if lines else ""
    _, _, trace = text.rpartition("Traceback (most recent call last):")
    frames = _OWN_FRAME.findall(trace) if status in _EXCEPTIONS else []
    return f"{frames[-1][0]}:{frames[-1][1]}: {last}" if frames else last
