"""Tool `bash`: run a command line in the folder and with the variables that the last command set.

When a command ends or reaches its time limit, all its processes are killed. The current folder and
the exported variables are passed to the next command in a file of the run's scratch folder. A
background command runs in parallel to others until it ends, is killed, or the agent stops working.
Not covered: terminals.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from cuagent.agent.jobs import Job
from cuagent.agent.run import Run
from cuagent.agent.tools.capped import OUTPUTS, Spool, discard_output, output_file, tidy
from cuagent.agent.tools.shell import BACKGROUND, FOREGROUND, Command, start
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema
from cuagent.events import ToolOutput

DEFAULT_TIMEOUT, LONGEST_TIMEOUT = 120, 1200
"""Time limit of a command in seconds: the default, and the largest that the model may request."""
LARGEST_FILE = 1 << 30
"""Largest size in bytes of any file that a command writes."""
LARGEST_OUTPUT = 64 << 20
"""Largest size in bytes of a background command's output; the command is killed above it."""
MOST_STREAMED = 64 << 10
"""Largest number of bytes of output that the user sees while a command runs."""
MOST_JOBS = 4
"""Largest number of background commands that run at the same time."""
DRAIN_SECONDS = 0.2
"""Seconds without output after a command's end at which reading stops.

A child process may still have the pipe open then.
"""
ENDED, TIMED_OUT, INTERRUPTED = "ended", "timed out", "interrupted"


def bash(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    if arguments.get("background"):
        return _in_background(context.run, arguments["command"])
    run = context.run
    timeout = min(arguments.get("timeout", DEFAULT_TIMEOUT), LONGEST_TIMEOUT)
    name, file = output_file(run, "bash")
    started = time.monotonic()
    with file as opened:
        spool = Spool(opened)
        command = start(run, arguments["command"], FOREGROUND, subprocess.PIPE, LARGEST_FILE)
        outcome = INTERRUPTED
        try:
            outcome = _collect(command, spool, started + timeout, context)
        except KeyboardInterrupt:
            run.cancel()
        finally:
            command.kill()
    seconds = time.monotonic() - started
    text = spool.text(f"{OUTPUTS}/{name}").rstrip("\n")
    if not spool.is_long:
        discard_output(run, name)
    code = command.process.returncode if outcome == ENDED else None
    data = {"exit": code, "seconds": round(seconds, 3), "timed_out": outcome == TIMED_OUT}
    ending = _ending(outcome, code, timeout)
    return ToolResult("\n".join(filter(None, [text, ending])) or "(no output)", data, code != 0)


def _in_background(run: Run, command: str) -> ToolResult:
    running = [job.name for job in run.jobs.values() if job.process.poll() is None]
    if len(running) >= MOST_JOBS:
        raise ToolError(f"{', '.join(running)} are still running; kill one with bash_kill first")
    name, file = output_file(run, "bash")
    try:
        started = start(run, command, BACKGROUND, file, LARGEST_OUTPUT)
    except BaseException:
        file.close()
        raise
    job = Job(name.removesuffix(".txt"), command, started.process, file, started.kill)
    run.jobs[job.name] = job
    text = f"started {job.name}; read its output with bash_output, kill it with bash_kill"
    return ToolResult(text, {"job": job.name})


def _collect(command: Command, spool: Spool, deadline: float, context: Context) -> str:
    """Read a command's output until the command ends, its deadline passes or the user interrupts.

    Returns ENDED, TIMED_OUT or INTERRUPTED.
    """
    process = command.process
    assert process.stdout is not None
    fd = process.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            if context.run.cancelled.is_set():
                return INTERRUPTED
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return TIMED_OUT
            if selector.select(min(remaining, DRAIN_SECONDS)):
                piece = os.read(fd, 1 << 16)
                if not piece:
                    break
                if spool.size < MOST_STREAMED:
                    context.emit(ToolOutput(context.call_id, tidy(piece)))
                spool.append(piece)
            elif process.poll() is not None and not selector.select(0):
                return ENDED  # and it wrote nothing between the two calls of select
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    return ENDED


def _ending(outcome: str, code: int | None, timeout: float) -> str:
    match outcome:
        case "timed out":
            return f"[killed after {timeout:g} s; it gets no input; set timeout for more time]"
        case "interrupted":
            return "[interrupted by the user before it finished]"
    return exit_line(code or 0)


def exit_line(code: int) -> str:
    """Return a line that names a command's exit code, or its signal if `code` is negative; "" for
    0.
    """
    if code < 0:
        return f"[killed by {signal.Signals(-code).name}]"
    return f"[exit code {code}]" if code else ""


TOOL = Tool(
    "bash",
    schema(
        ["command"],
        command={"type": "string", "description": "The command line."},
        timeout={
            "type": "number",
            "minimum": 1,
            "description": f"Time limit in seconds, {DEFAULT_TIMEOUT} by default, at most "
            f"{LONGEST_TIMEOUT}.",
        },
        background={
            "type": "boolean",
            "description": "Return immediately and let it run; for commands that take minutes.",
        },
    ),
    bash,
    shown="command",
    changes=True,
)
