"""Provide Python processes that have already imported torch when they start.

Tests that run whole programs would otherwise import torch in each process, which takes seconds. A
server process has imported torch and forks. A test runs `relay` in place of the interpreter: the
relay sends its arguments, environment, folder, CPU affinity and open files to the server, forwards
signals, and exits with the exit code of the fork. So `subprocess` and `multiprocessing` need no
change.
Not covered: options of the interpreter other than `-I`, `-B`, `-m` and `-c`, resource limits,
`sys.orig_argv`, and the destruction of objects at the end. A test of the start itself, or of an
interrupt while torch is imported, uses `sys.executable`.

Invariant: a fork has imported torch and the named modules, and otherwise equals a fresh
interpreter.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import os
import secrets
import select
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_FILES = 32


def warm_python(lasts: int, *more: str) -> list[str]:
    """Return a command to use in place of `[sys.executable]`. It works until the process with the
    id `lasts` ends.

    `more`: names of further modules that the interpreter has imported.
    """
    name = f"cuagent-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0{name}")
        listening.listen(16)
        listening.set_inheritable(True)
        command = [sys.executable, __file__, "serve", str(listening.fileno()), str(lasts), *more]
        nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
        # subprocess would warn that the server is never waited for.
        os.posix_spawn(command[0], command, os.environ, file_actions=[nothing], setsid=True)
    return [sys.executable, "-I", "-S", __file__, "relay", name]


@contextmanager
def spawning(python: Sequence[str], program: Path) -> Iterator[None]:
    """Make multiprocessing start its spawned processes by the command `python`, inside this
    context.

    `program`: path of a wrapper script that is written for this.
    """
    from multiprocessing import resource_tracker, spawn

    resource_tracker.ensure_running()  # for it lives on
    before = os.fsdecode(spawn.get_executable())
    program.write_text(f'#!/bin/sh\nexec {shlex.join(python)} "$@"\n')
    program.chmod(0o755)
    spawn.set_executable(str(program))
    try:
        yield
    finally:
        spawn.set_executable(before)


# -- the relay


def relay(name: str, arguments: list[str]) -> None:
    """Let a fork of the server named `name` run the arguments; exit with the fork's exit code."""
    files = [0, 1, 2, *passed()]
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "processors": list(os.sched_getaffinity(0)),
        "files": files,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(f"\0{name}")
        socket.send_fds(server, [json.dumps(request).encode()], files)
        pid = int(server.recv(64))
        for signum in PASSED_ON:
            signal.signal(signum, lambda got, _: os.kill(pid, got))
        for number in files:
            os.close(number)  # a reader of the output then sees its end
        code = os.waitstatus_to_exitcode(int(server.recv(64)))
    if code < 0:
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def passed() -> list[int]:
    """Return the numbers of the inherited file descriptors other than the three standard ones."""
    found = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the listing itself had one
            if int(path.name) > 2 and os.get_inheritable(int(path.name)):
                found.append(int(path.name))
    return found


# -- the server


def serve(number: int, lasts: int, more: Sequence[str]) -> dict[str, Any]:
    """Serve requests, each in a fork. Only a fork returns, with its request; the server exits when
    process `lasts` ends."""
    until = os.pidfd_open(lasts)
    for name in ("torch", *more):
        importlib.import_module(name)

    gc.freeze()  # the collector must not touch, and so copy, what all forks share
    listening = socket.socket(fileno=number)
    while until not in select.select([until, number], [], [])[0]:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            os.close(until)
            return _keep(connection)
        connection.close()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    os._exit(0)


def _keep(connection: socket.socket) -> dict[str, Any]:
    """Receive a request and fork: the child returns the request to run it, the parent reports the
    child's exit code."""
    data, files, _, _ = socket.recv_fds(connection, 1 << 20, MOST_FILES)
    pid = os.fork()
    if pid == 0:
        connection.close()
        return _become(json.loads(data), files)
    for number in (0, 1, 2, *files):
        os.close(number)
    with suppress(OSError):
        connection.send(str(pid).encode())
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, connection], [], [])[0]:
        os.kill(pid, signal.SIGKILL)  # the relay was killed
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        connection.send(str(status).encode())
    os._exit(0)


def _become(request: dict[str, Any], files: list[int]) -> dict[str, Any]:
    os.setsid()
    os.sched_setaffinity(0, request["processors"])
    # Out of the way of each other first: they are wanted under the numbers they had.
    aside = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100) for number in files]
    for number in files:
        os.close(number)
    for target, number in zip(request["files"], aside, strict=True):
        os.dup2(number, target)
        os.close(number)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(  # noqa: SIM115
        2, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    return request


def run(arguments: list[str]) -> None:
    """Run `-m NAME`, `-c TEXT` or `FILE` as the Python interpreter does, with `-I` and `-B` as
    possible options before it."""
    import runpy

    options = list(takewhile(lambda a: a in ("-I", "-B"), arguments))
    arguments, isolated = arguments[len(options) :], "-I" in options
    sys.dont_write_bytecode |= "-B" in options
    option = arguments[0] if arguments[0] in ("-m", "-c") else ""
    what, *rest = arguments[bool(option) :]
    sys.argv = [option or what, *rest]
    sys.path[0] = {"-m": str(Path.cwd()), "-c": "", "": str(Path(what).parent)}[option]
    if isolated:
        theirs = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:] = [path for path in sys.path[1:] if path not in theirs]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    elif option == "-c":
        exec(compile(what, "<string>", "exec"), vars(main))
    else:
        runpy.run_path(what, run_name="__main__")


def end(code: int) -> None:
    """Exit the process as the interpreter does, but without freeing its objects, which the kernel
    does faster.

    Freeing each object of torch takes a fork 0.35 s, because it copies the pages that it shares.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):  # where a stream is closed, the interpreter decides the exit code
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    role, where, *others = sys.argv[1:]
    if role == "relay":
        relay(where, others)
    else:
        program = serve(int(where), int(others[0]), others[1:])["arguments"]
        try:
            run(program)
        except SystemExit as ended:
            if not isinstance(ended.code, int | None):
                raise
            end(ended.code or 0)
        end(0)
