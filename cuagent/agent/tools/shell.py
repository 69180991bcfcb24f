"""A command line as a process of the sandbox: how it starts, and how all of it ends.

Each command is a process group of its own, without input. It can write to the work folder and to
scratch, and has no network and no secret of the user. Every process that it starts carries a mark
in its environment, so that one that has left the group is found and killed as well.
Not covered: a process that left the group and wiped its environment, where the sandbox does not
end it (bubblewrap does).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import IO

import cuagent
from cuagent.agent.run import Run
from cuagent.agent.tools.tool import ToolError
from cuagent.record import is_secret_name
from cuagent.sandbox import Policy, SandboxError, probe, wrap

MARK = "CUAGENT_COMMAND"
BLOWS = 40
"""Rounds of killing; a fork bomb needs more than one."""
KEEPING = f"""\
_state=$1 _command=$2 _mark=${MARK}
set --
[ -r "$_state" ] && . "$_state"
{MARK}=$_mark
trap '_code=$?; {{ export -p; printf "cd %q 2>/dev/null\\n" "$PWD"; }} > "$_state.new" \
&& mv -f "$_state.new" "$_state"; exit $_code' EXIT
eval "$_command"
"""
"""Goes on from the folder and the variables of the command before, but for its mark, and keeps its
own."""
READING = f"""\
_command=$2 _mark=${MARK}
[ -r "$1" ] && . "$1"
{MARK}=$_mark
set --
eval "$_command"
"""
"""Goes on from them too, and keeps nothing: for what runs beside other commands."""


@dataclass(frozen=True)
class Command:
    """A command that was started."""

    process: subprocess.Popen[bytes]
    mark: str

    def kill(self) -> None:
        """End it and all that it has started, and nothing that was given its number since."""
        if self.process.returncode is None:  # else the number may be another's by now
            _end_group(self.process.pid)
        quiet = 0  # twice: a process has no environment at the moment in which it becomes another
        for _ in range(BLOWS):
            quiet = 0 if _kill_marked(self.mark, self.process.pid) else quiet + 1
            if quiet == 2:
                break
            time.sleep(0.002)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def start(run: Run, command: str, session: str, out: int | IO[bytes], largest: int) -> Command:
    """Start a command line; no file that it writes grows over `largest` bytes. Raises ToolError."""
    shell = shutil.which("bash")
    if shell is None:
        raise ToolError("there is no bash on this machine; use the file tools")
    if "\0" in command:
        raise ToolError("the command holds a NUL character")
    state, mark = run.folder.scratch.resolve() / "shell", token_hex(8)
    text = command.encode("utf-8", "replace").decode()
    argv = [shell, "--noprofile", "--norc", "-c", session, "bash", str(state), text]
    try:
        process = subprocess.Popen(
            _confined(run, argv, mark, largest),
            cwd=run.work,
            env={n: v for n, v in os.environ.items() if not is_secret_name(n)} | {MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, SandboxError) as error:
        raise ToolError(f"the command could not be started: {error}") from error
    return Command(process, mark)


def environment(run: Run) -> dict[str, str]:
    """What a command gets beside the sandbox's few variables: nothing asks, pages or colours."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PAGER": "cat",
        "EDITOR": "true",
        "GIT_PAGER": "cat",
        "GIT_EDITOR": "true",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_NOSYSTEM": "1",
        # the run lies inside the user's own repository, which git must not find from here
        "GIT_CEILING_DIRECTORIES": str(run.folder.path.resolve()),
        "PYTHONUNBUFFERED": "1",
    }


def _confined(run: Run, argv: list[str], mark: str, largest: int) -> list[str]:
    """The command inside the sandbox. Raises SandboxError."""
    folders = (run.folder.scratch.resolve(), run.work.resolve())
    if os.geteuid() == 0:
        # every command has a user id of its own, and those that run together share the folders
        for folder in folders:
            folder.chmod(0o777)
    policy = Policy(
        read=(Path(cuagent.__file__).parent,),
        write=folders,
        gpu=run.task.device == "cuda",
        children=run.task.device == "cuda",
        file_bytes=largest,
        environment=(*environment(run).items(), (MARK, mark)),
    )
    return wrap(argv, policy, probe())


def _kill_marked(mark: str, group: int) -> bool:
    """Kill what carries the mark, with `group` where one of it is found there; whether any was."""
    wanted, found = f"{MARK}={mark}".encode(), False
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            if wanted in Path(entry.path, "environ").read_bytes():
                found = True
                if os.getpgid(int(entry.name)) == group:
                    _end_group(group)
                else:
                    os.kill(int(entry.name), signal.SIGKILL)
    return found


def _end_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)  # no fork escapes this one
