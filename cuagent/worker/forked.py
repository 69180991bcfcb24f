"""Start the fork server's program in a new Python process, or in a fork of this process.

A fork already has all modules that this process has imported, so it is ready immediately. A
benchmark uses that: it imports torch in one fork server, runs each problem in a child of that
server, and the child forks a fork server of its own.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL
from typing import IO, NoReturn

from cuagent.library_folders import library_folders

CONTROL = 3
"""Number of the descriptor of the referee's socket in a forked server."""
POLL_S = 0.01


@dataclass(frozen=True)
class Serving:
    """Arguments of the fork server's program (`fork_server_main.main`)."""

    folder: str
    modules: tuple[str, ...]
    packages: tuple[str, ...]
    compiler: bool
    on_gpu: bool
    eager: bool


def command(control: int, serving: Serving) -> list[str]:
    """Return the command that runs the fork server's program in a new Python, with the socket
    `control`.

    -I: no PYTHONPATH, no user site, no current directory, so that nothing can be shadowed. The
    folder that contains cuagent and the user's packages come last, after the standard library and
    torch. The server writes bytecode if this process does: without it, every run compiles the
    sources of torch.compile, which no other process of ours imports. Its children write none.
    """
    program = (
        f"import sys, socket; sys.path += {[str(_root()), *library_folders()]!r};"
        "from cuagent.worker.fork_server_main import main;"
        f"main(socket.socket(fileno={control}), {serving.folder!r}, {serving.modules!r}, "
        f"{serving.packages!r}, compiler={serving.compiler}, on_gpu={serving.on_gpu}, "
        f"eager={serving.eager})"
    )
    no_bytecode = ["-B"] if sys.dont_write_bytecode else []
    return [sys.executable, "-I", *no_bytecode, "-c", program]


class ForkedProcess:
    """Handle of a process forked by this one, with `poll`, `wait` and `kill` as in
    `subprocess.Popen`."""

    def __init__(self, pid: int, stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stderr: IO[bytes] | None = stderr
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code. Raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("fork server", timeout or 0.0)
            time.sleep(POLL_S)
        return code

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, SIGKILL)


def fork_process(control: socket.socket, serving: Serving) -> ForkedProcess:
    """Fork a process that runs the fork server's program on the socket `control`."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        _serve(control.fileno(), write, serving)
    os.close(write)
    return ForkedProcess(pid, os.fdopen(read, "rb", buffering=0))


def _serve(control: int, errors: int, serving: Serving) -> NoReturn:
    """Run the fork server's program in the forked process, after closing all descriptors but the
    socket and the pipe for errors."""
    code = 1
    try:
        from cuagent.worker.fork_server_main import main, move_up

        os.setsid()
        os.chdir("/")
        devnull = os.open(os.devnull, os.O_RDWR)
        devnull, errors, control = (move_up(number) for number in (devnull, errors, control))
        for source, target in ((devnull, 0), (devnull, 1), (errors, 2), (control, CONTROL)):
            os.dup2(source, target)
        os.closerange(CONTROL + 1, os.sysconf("SC_OPEN_MAX"))
        without = command(CONTROL, replace(serving, packages=()))
        main(
            socket.socket(fileno=CONTROL),
            serving.folder,
            serving.modules,
            serving.packages,
            compiler=serving.compiler,
            on_gpu=serving.on_gpu,
            eager=serving.eager,
            without_packages=without,
        )
        code = 0
    except BaseException:  # noqa: BLE001  process boundary: no exception may reach the parent's code
        traceback.print_exc()
    finally:
        os._exit(code)


def _root() -> Path:
    spec = importlib.util.find_spec("cuagent")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]
