"""Describe in one line why a worker process ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal

from cuagent.worker.channel import Status


def describe_exit(wait_status: int) -> str:
    """Describe a wait status, such as "killed by SIGSEGV" or "left with exit status 1"."""
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
        return f"killed by signal {number}"
    return f"left with exit status {os.WEXITSTATUS(wait_status)}"


_CANDIDATE_FRAME = re.compile(r'^ *File "([^/<"][^"]*)", line (\d+)', re.MULTILINE)
_EXCEPTIONS = (
    Status.IMPORT_FAILED,
    Status.CONSTRUCT_FAILED,
    Status.STATE_MISMATCH,
    Status.RAISED,
)


def last_line(status: Status, text: str) -> str:
    """Return the last line of a worker's printed text.

    For an exception it is preceded by `file:line` of the innermost frame in the candidate's own
    files, such as `model_new.py:12: ValueError: ...`.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1][:300] if lines else ""
    _, _, trace = text.rpartition("Traceback (most recent call last):")
    frames = _CANDIDATE_FRAME.findall(trace) if status in _EXCEPTIONS else []
    return f"{frames[-1][0]}:{frames[-1][1]}: {last}" if frames else last
