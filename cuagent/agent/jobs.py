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
    """One background command."""

    name: str
    command: str
    process: subprocess.Popen[bytes]
    output: BinaryIO
    """Open file with the whole output; it was opened before the command started."""
    kill: Callable[[], None]
    """End the process and every process that it has started."""
    shown: int = 0
    """Number of bytes of the output that the model has seen."""


def end_jobs(jobs: Iterable[Job]) -> None:
    """Kill all processes of the given commands, also those that outlive their command."""
    for job in jobs:
        job.kill()
