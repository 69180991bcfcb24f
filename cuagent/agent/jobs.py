"""Background commands of the agent: each a process group with its output in a file.

Invariant: none outlives the `run_agent` in which it was started.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from cuagent.agent.run import Run


@dataclass
class Job:
    """One background command."""

    name: str
    command: str
    process: subprocess.Popen[bytes]
    output: BinaryIO
    """The whole output; its file in the work folder was opened before the command started."""
    kill: Callable[[], None]
    """Ends the process and whatever it has started."""
    shown: int = 0
    """Bytes of the output that the model has seen."""


def end_jobs(run: Run) -> None:
    """Kill every background command that still runs, and what those that ended have left."""
    for job in run.jobs.values():
        job.kill()
