"""Start a command line in the sandbox, and kill all its processes.

Each command is a separate process group without input. It can write to the work folder and the
scratch folder, and has no network and no secrets of the user. Its processes inherit a random tag in
their environment, so those that left the group are found and killed as well.
Not covered: a process that left the group and erased its environment, unless the sandbox ends it
(bubblewrap does).
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

TAG = "CUAGENT_COMMAND"
"""Name of the environment variable that contains the random tag of a command."""
KILL_ROUNDS = 40
"""Largest number of passes over all processes to kill those of a command; a fork bomb needs
several.
"""
FOREGROUND = f"""\
_state=$1 _command=$2 _mark=${TAG}
set --
[ -r "$_state" ] && . "$_state"
{TAG}=$_mark
trap '_code=$?; {{ export -p; printf "cd %q 2>/dev/null\\n" "$PWD"; }} > "$_state.new" \
&& mv -f "$_state.new" "$_state"; exit $_code' EXIT
eval "$_command"
"""
"""Script that runs a normal command.

It loads the folder and variables that the last command saved, except its tag; runs the command; and
saves the new folder and variables.
"""
BACKGROUND = f"""\
_command=$2 _mark=${TAG}
[ -r "$1" ] && . "$1"
{TAG}=$_mark
set --
eval "$_command"
"""
"""Script that runs a background command: it loads the saved folder and variables, but saves
none.
"""


@dataclass(frozen=True)
class Command:
    """A started command: its process and the random tag in its environment."""

    process: subprocess.Popen[bytes]
    tag: str

    def kill(self) -> None:
        """Kill the command and all its processes, and wait for its end.

        A process that reuses the id of the ended command is not killed.
        """
        if self.process.returncode is None:  # else another process may have this id now
            _end_group(self.process.pid)
        empty = 0  # two empty rounds: during execve a process has no readable environment
        for _ in range(KILL_ROUNDS):
            empty = 0 if _kill_tagged(self.tag, self.process.pid) else empty + 1
            if empty == 2:
                break
            time.sleep(0.002)
        self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()


def start(run: Run, command: str, script: str, out: int | IO[bytes], largest: int) -> Command:
    """Start a command line with the script FOREGROUND or BACKGROUND. Raises ToolError.

    The output goes to `out`. No file that the command writes may exceed `largest` bytes.
    """
    shell = shutil.which("bash")
    if shell is None:
        raise ToolError("there is no bash on this machine; use the file tools")
    if "\0" in command:
        raise ToolError("the command contains a NUL character")
    state, tag = run.folder.scratch.resolve() / "shell", token_hex(8)
    text = command.encode("utf-8", "replace").decode()
    argv = [shell, "--noprofile", "--norc", "-c", script, "bash", str(state), text]
    try:
        process = subprocess.Popen(
            _confined(run, argv, tag, largest),
            cwd=run.work,
            env={n: v for n, v in os.environ.items() if not is_secret_name(n)} | {TAG: tag},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, SandboxError) as error:
        raise ToolError(f"the command could not be started: {error}") from error
    return Command(process, tag)


def environment(run: Run) -> dict[str, str]:
    """Return the environment variables of every command; most turn off prompts, pagers and
    colours.
    """
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
        # the run is inside the user's repository, which git must not find from here
        "GIT_CEILING_DIRECTORIES": str(run.folder.path.resolve()),
        "PYTHONUNBUFFERED": "1",
    }


def _confined(run: Run, argv: list[str], tag: str, largest: int) -> list[str]:
    """Return `argv` wrapped in the sandbox; `tag` goes into its environment.

    Raises SandboxError.
    """
    folders = (run.folder.scratch.resolve(), run.work.resolve())
    if os.geteuid() == 0:
        # each command has its own user id, and parallel commands share the folders
        for folder in folders:
            folder.chmod(0o777)
    policy = Policy(
        read=(Path(cuagent.__file__).parent,),
        write=folders,
        gpu=run.task.device == "cuda",
        children=run.task.device == "cuda",
        file_bytes=largest,
        environment=(*environment(run).items(), (TAG, tag)),
    )
    return wrap(argv, policy, probe())


def _kill_tagged(tag: str, group: int) -> bool:
    """Kill all processes with the tag in their environment; return True if at least one existed.

    If one of them is in the process group `group`, the whole group is killed.
    """
    wanted, found = f"{TAG}={tag}".encode(), False
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it has ended, or belongs to another user
            if wanted in Path(entry.path, "environ").read_bytes():
                found = True
                if os.getpgid(int(entry.name)) == group:
                    _end_group(group)
                else:
                    os.kill(int(entry.name), signal.SIGKILL)
    return found


def _end_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)  # a fork cannot escape a group signal
