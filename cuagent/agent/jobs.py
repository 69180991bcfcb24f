"""Background commands of the agent; each is a process group with its output in a file.

Invariant: no command outlives the `run_agent` call that started it.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import BinaryIO


@dataclass
class Job:
    """A background command that the agent started."""

    name: str
    command: str
    process: subprocess.Popen[bytes]
    output: BinaryIO
    """Open file that the command writes its output to."""
    kill: Callable[[], None]
    """End the process and every process that it has started."""
    shown: int = 0
    """Number of bytes of the output that the model has read."""


def end_jobs(jobs: Iterable[Job]) -> None:
    """Kill all processes of the given background commands, also those that outlived their
    command.
    """
    for job in jobs:
        job.kill()
