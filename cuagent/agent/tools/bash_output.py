"""bash_output: what a background command has printed since it was last looked at."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from cuagent.agent.jobs import Job
from cuagent.agent.run import Run
from cuagent.agent.tools.bash import exit_line
from cuagent.agent.tools.capped import LONGEST, OUTPUTS, head_and_tail, tidy
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema

DEFAULT_WAIT, LONGEST_WAIT = 10, 600
"""Seconds."""
LOOK = 0.1


def bash_output(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    job = job_of(context.run, arguments["job"])
    _wait(context.run, job, min(arguments.get("wait", DEFAULT_WAIT), LONGEST_WAIT))
    code = job.process.poll()
    text = _fresh(job).rstrip("\n")
    standing = "[still running]" if code is None else exit_line(code) or "[ended]"
    return ToolResult(f"{text}\n{standing}" if text else standing, {"job": job.name, "exit": code})


def job_of(run: Run, name: str) -> Job:
    """The background command of that name. Raises ToolError."""
    if name not in run.jobs:
        have = ", ".join(run.jobs) or "none; start one with bash and background"
        raise ToolError(f"no background command {name[:40]!r}; there is {have}")
    return run.jobs[name]


def _wait(run: Run, job: Job, seconds: float) -> None:
    """Until it has ended, the time is over or the user interrupts."""
    deadline = time.monotonic() + seconds
    while not run.cancelled.is_set() and time.monotonic() < deadline:
        try:
            job.process.wait(LOOK)
        except subprocess.TimeoutExpired:
            continue
        return


def _fresh(job: Job) -> str:
    """What was not shown before, its head and tail where it is long."""
    file = job.output.fileno()
    size = os.fstat(file).st_size
    new = max(0, size - job.shown)  # the command may have cut it
    # Read at a place of its own: the command writes at the one that it shares with this file.
    if new <= LONGEST:
        text = tidy(os.pread(file, new, job.shown))
    else:
        head = tidy(os.pread(file, LONGEST // 3, job.shown))
        tail = tidy(os.pread(file, 2 * LONGEST // 3, size - 2 * LONGEST // 3))
        whole = f"{OUTPUTS}/{job.name}.txt"
        text = head_and_tail(head, tail, new - LONGEST, size, whole)
    job.shown = size
    return text


TOOL = Tool(
    "bash_output",
    schema(
        ["job"],
        job={"type": "string", "description": "What bash called it, such as bash-1."},
        wait={
            "type": "number",
            "minimum": 0,
            "description": f"Seconds to wait for its end, {DEFAULT_WAIT} by default.",
        },
    ),
    bash_output,
    shown="job",
    changes=True,
)
