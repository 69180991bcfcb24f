"""bash: one command line at a time, with the folder and the environment of the one before.

A command is killed whole at its time limit or when it has ended, so nothing is left running. The
shell's folder and exported variables pass through a file in the run's scratch folder. In the
background a command runs beside others until it ends, is killed, or the agent stops working.
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
from cuagent.agent.tools.shell import KEEPING, READING, Command, start
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema
from cuagent.events import ToolOutput

DEFAULT_TIMEOUT, LONGEST_TIMEOUT = 120, 1200
"""Seconds."""
LARGEST_FILE = 1 << 30
"""Bytes of any file that a command writes."""
LARGEST_OUTPUT = 64 << 20
"""Bytes of the output of a background command, which is killed when it prints more."""
MOST_STREAMED = 64 << 10
"""Bytes of one output that are shown while it runs."""
MOST_JOBS = 4
LINGER = 0.2
"""Seconds of silence after the command's end, when a child of it still holds the pipe."""
ENDED, TIMED_OUT, INTERRUPTED = "ended", "timed out", "interrupted"


def bash(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    if arguments.get("background"):
        return _in_background(context.run, arguments["command"])
    run = context.run
    timeout = min(arguments.get("timeout", DEFAULT_TIMEOUT), LONGEST_TIMEOUT)
    name, file = output_file(run, "bash")
    begun = time.monotonic()
    with file as whole:
        spool = Spool(whole)
        command = start(run, arguments["command"], KEEPING, subprocess.PIPE, LARGEST_FILE)
        how = INTERRUPTED
        try:
            how = _collect(command, spool, begun + timeout, context)
        except KeyboardInterrupt:
            run.cancel()
        finally:
            command.kill()
    seconds = time.monotonic() - begun
    text = spool.text(f"{OUTPUTS}/{name}").rstrip("\n")
    if not spool.is_long:
        discard_output(run, name)
    code = command.process.returncode if how == ENDED else None
    data = {"exit": code, "seconds": round(seconds, 3), "timed_out": how == TIMED_OUT}
    ending = _ending(how, code, timeout)
    return ToolResult("\n".join(filter(None, [text, ending])) or "(no output)", data, code != 0)


def _in_background(run: Run, command: str) -> ToolResult:
    running = [job.name for job in run.jobs.values() if job.process.poll() is None]
    if len(running) >= MOST_JOBS:
        raise ToolError(f"{', '.join(running)} are still running; kill one with bash_kill first")
    name, file = output_file(run, "bash")
    try:
        started = start(run, command, READING, file, LARGEST_OUTPUT)
    except BaseException:
        file.close()
        raise
    job = Job(name.removesuffix(".txt"), command, started.process, file, started.kill)
    run.jobs[job.name] = job
    text = f"started {job.name}; see it with bash_output, end it with bash_kill"
    return ToolResult(text, {"job": job.name})


def _collect(command: Command, spool: Spool, deadline: float, context: Context) -> str:
    """Read until the command has ended, its time is over or the user interrupts; says which."""
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
            if selector.select(min(remaining, LINGER)):
                piece = os.read(fd, 1 << 16)
                if not piece:
                    break
                if spool.size < MOST_STREAMED:
                    context.emit(ToolOutput(context.call_id, tidy(piece)))
                spool.take(piece)
            elif process.poll() is not None:
                return ENDED
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    return ENDED


def _ending(how: str, code: int | None, timeout: float) -> str:
    match how:
        case "timed out":
            return f"[killed after {timeout:g} s; it gets no input, and timeout may be set to more]"
        case "interrupted":
            return "[interrupted by the user before it finished]"
    return exit_line(code or 0)


def exit_line(code: int) -> str:
    """How a command ended, if not well."""
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
            "description": f"Seconds until it is killed, {DEFAULT_TIMEOUT} by default, at most "
            f"{LONGEST_TIMEOUT}.",
        },
        background={
            "type": "boolean",
            "description": "Return at once and let it run; for what takes minutes.",
        },
    ),
    bash,
    shown="command",
    changes=True,
)
