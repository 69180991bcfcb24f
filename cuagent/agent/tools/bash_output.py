"""Tool `bash_output`: show the new output of a background command."""

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
"""Seconds to wait for a command's end: the default, and the most that the model may request."""
POLL_SECONDS = 0.1
"""Seconds between two checks if the user interrupts."""


def bash_output(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    job = job_of(context.run, arguments["job"])
    _wait(context.run, job, min(arguments.get("wait", DEFAULT_WAIT), LONGEST_WAIT))
    code = job.process.poll()
    text = _new_output(job).rstrip("\n")
    state = "[still running]" if code is None else exit_line(code) or "[ended]"
    return ToolResult(f"{text}\n{state}" if text else state, {"job": job.name, "exit": code})


def job_of(run: Run, name: str) -> Job:
    """Return the background command named `name`. Raises ToolError for an unknown name."""
    if name not in run.jobs:
        have = ", ".join(run.jobs) or "none; start one with bash and background"
        raise ToolError(f"no background command {name[:40]!r}; there is {have}")
    return run.jobs[name]


def _wait(run: Run, job: Job, seconds: float) -> None:
    """Wait at most `seconds` until the command ends or the user interrupts."""
    deadline = time.monotonic() + seconds
    while not run.cancelled.is_set() and time.monotonic() < deadline:
        try:
            job.process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return


def _new_output(job: Job) -> str:
    """Return the command's output since the last call; of a long output only the head and the
    tail.
    """
    file = job.output.fileno()
    size = os.fstat(file).st_size
    new = max(0, size - job.shown)  # the command may have truncated its output
    # pread leaves the file offset alone, which the command shares
    if new <= LONGEST:
        text = tidy(os.pread(file, new, job.shown))
    else:
        head = tidy(os.pread(file, LONGEST // 3, job.shown))
        tail = tidy(os.pread(file, 2 * LONGEST // 3, size - 2 * LONGEST // 3))
        path = f"{OUTPUTS}/{job.name}.txt"
        text = head_and_tail(head, tail, new - LONGEST, size, path)
    job.shown = size
    return text


TOOL = Tool(
    "bash_output",
    schema(
        ["job"],
        job={"type": "string", "description": "The name that bash returned, such as bash-1."},
        wait={
            "type": "number",
            "minimum": 0,
            "description": f"Seconds to wait for the end, {DEFAULT_WAIT} by default.",
        },
    ),
    bash_output,
    shown="job",
    changes=True,
)
