"""bash: one command line at a time, with the folder and the environment of the one before.

Each command is a process group of its own without input, killed whole at its time limit or when
the command has ended, so nothing is left running. The shell's folder and exported variables pass
through a file in the run's scratch folder. It runs in the sandbox: it can write to the work folder
and nowhere else, and has no network and no secret of the user.
Not covered: background commands, terminals.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import cuagent
from cuagent.agent.run import Run
from cuagent.agent.tools.capped import LONGEST, OUTPUTS, head_and_tail, output_file, tidy
from cuagent.agent.tools.tool import Context, Tool, ToolError, ToolResult, schema
from cuagent.events import ToolOutput
from cuagent.record import is_secret_name
from cuagent.sandbox import Policy, SandboxError, probe, wrap

DEFAULT_TIMEOUT, LONGEST_TIMEOUT = 120, 1200
"""Seconds."""
LARGEST_FILE = 64 << 20
"""Bytes of one output that are kept in its file."""
MOST_STREAMED = 64 << 10
"""Bytes of one output that are shown while it runs."""
LINGER = 0.2
"""Seconds of silence after the command's end, when a child of it still holds the pipe."""
SESSION = """\
_state=$1 _command=$2
set --
[ -r "$_state" ] && . "$_state"
trap '_code=$?; { export -p; printf "cd %q 2>/dev/null\\n" "$PWD"; } > "$_state.new" \
&& mv -f "$_state.new" "$_state"; exit $_code' EXIT
eval "$_command"
"""


@dataclass
class Spool:
    """An output as it comes: its head and tail in memory, the whole in a file."""

    file: BinaryIO
    head: bytearray = field(default_factory=bytearray)
    tail: bytearray = field(default_factory=bytearray)
    size: int = 0

    def take(self, piece: bytes) -> None:
        if self.size < LARGEST_FILE:
            self.file.write(piece[: LARGEST_FILE - self.size])
        self.size += len(piece)
        room = max(0, LONGEST - len(self.head))
        self.head += piece[:room]
        self.tail += piece[room:]
        del self.tail[: -2 * LONGEST // 3]

    def text(self, whole: str) -> str:
        """What the model sees; `whole` is where the rest can be read."""
        if not self.tail:
            return tidy(bytes(self.head))
        if self.size <= LONGEST + len(self.tail) and len(self.tail) < 2 * LONGEST // 3:
            head = bytes(self.head)
        else:
            head = bytes(self.head[: LONGEST // 3])
        left_out = self.size - len(head) - len(self.tail)
        if left_out == 0:
            return tidy(head + bytes(self.tail))
        return head_and_tail(tidy(head), tidy(bytes(self.tail)), left_out, whole)


def bash(context: Context, arguments: Mapping[str, Any]) -> ToolResult:
    run = context.run
    timeout = min(arguments.get("timeout", DEFAULT_TIMEOUT), LONGEST_TIMEOUT)
    file = output_file(run, "bash")
    start = time.monotonic()
    with file.open("xb") as whole:
        spool = Spool(whole)
        process = _start(run, arguments["command"])
        try:
            ended = _collect(process, spool, start + timeout, context)
        finally:
            _kill_group(process)
    seconds = time.monotonic() - start
    text = spool.text(f"{OUTPUTS}/{file.name}").rstrip("\n")
    if spool.size <= LONGEST:
        file.unlink()
    code = process.returncode if ended else None
    data = {"exit": code, "seconds": round(seconds, 3), "timed_out": not ended}
    return ToolResult(_with_ending(text, code, timeout), data, is_error=code != 0)


def environment(run: Run) -> dict[str, str]:
    """What a command gets beside the sandbox's few variables: nothing asks, pages or colours."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        # the run lies inside the user's own repository, which git must not find from here
        "GIT_CEILING_DIRECTORIES": str(run.folder.path.resolve()),
        "PYTHONUNBUFFERED": "1",
    }


def _start(run: Run, command: str) -> subprocess.Popen[bytes]:
    shell = shutil.which("bash")
    if shell is None:
        raise ToolError("there is no bash on this machine; use the file tools")
    if "\0" in command:
        raise ToolError("the command holds a NUL character")
    state = run.folder.scratch.resolve() / "shell"
    argv = [shell, "--noprofile", "--norc", "-c", SESSION, "bash", str(state), command]
    try:
        return subprocess.Popen(
            confined(run, argv),
            cwd=run.work,
            env={n: v for n, v in os.environ.items() if not is_secret_name(n)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, SandboxError) as error:
        raise ToolError(f"the command could not be started: {error}") from error


def confined(run: Run, argv: list[str]) -> list[str]:
    """The command inside the sandbox. Raises SandboxError."""
    policy = Policy(
        read=(Path(cuagent.__file__).parent,),
        write=(run.folder.scratch.resolve(), run.work.resolve()),
        gpu=run.task.device == "cuda",
        children=run.task.device == "cuda",
        environment=tuple(environment(run).items()),
    )
    return wrap(argv, policy, probe())


def _collect(
    process: subprocess.Popen[bytes], spool: Spool, deadline: float, context: Context
) -> bool:
    """Read until the command has ended; False at the deadline."""
    assert process.stdout is not None
    fd = process.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while (remaining := deadline - time.monotonic()) > 0:
            if selector.select(min(remaining, LINGER)):
                piece = os.read(fd, 1 << 16)
                if not piece:
                    break
                if spool.size < MOST_STREAMED:
                    context.emit(ToolOutput(context.call_id, tidy(piece)))
                spool.take(piece)
            elif process.poll() is not None:
                return True
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Nothing that the command started in its group outlives it."""
    for _ in range(20):  # a fork bomb needs more than one blow
        with contextlib.suppress(PermissionError):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                break
        process.poll()
        time.sleep(0.005)
    process.wait()
    if process.stdout:
        process.stdout.close()


def _with_ending(text: str, code: int | None, timeout: float) -> str:
    if code is None:
        ending = f"[killed after {timeout:g} s; it gets no input, and timeout may be set to more]"
    elif code < 0:
        ending = f"[killed by {signal.Signals(-code).name}]"
    elif code:
        ending = f"[exit code {code}]"
    else:
        return text or "(no output)"
    return f"{text}\n{ending}" if text else ending


TOOL = Tool(
    "bash",
    schema(
        ["command"],
        command={"type": "string", "description": "The command line."},
        timeout={
            "type": "number",
            "minimum": 1,
            "description": f"Seconds until it is killed, {DEFAULT_TIMEOUT} by default.",
        },
    ),
    bash,
    shown="command",
)
