"""The fork server's program: import torch once, then fork one child for each session.

The process contains no secret, creates no CUDA context (a context does not survive a fork) and runs
no parallel region (a thread pool does not either). It reads requests from one socket, whose other
end is the referee's. It only forks children and ends them. When the referee closes the socket, it
kills all children and exits.

It watches the socket instead of using PR_SET_PDEATHSIG, because that signal is sent when the
*thread* that started the process ends, and a short-lived thread may open a referee. Children do use
PDEATHSIG: this process has one thread only. As the subreaper it inherits the processes that a
candidate leaves behind, and kills them too.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cuagent.sandbox import Tier, enter
from cuagent.sandbox.policy import policy_from_json
from cuagent.worker.channel import receive_message, send_message
from cuagent.worker.folder import remove
from cuagent.worker.memory.heap import pin_allocator
from cuagent.worker.preload import Step, compiler_steps, forget_folders, import_packages

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_SHOWN_BYTES = 15
_PR_SET_CHILD_SUBREAPER = 36
DEFECT = 70
"""Exit code of a child (EX_SOFTWARE) if cuagent's own code failed in it, not the code under
test."""
IDLE_S = 0.05
"""Seconds to wait for a request before the next part of torch.compile is imported."""
_KILL_TIMEOUT_S = 10.0
"""Seconds to wait for the end of a killed process. A process stuck in a driver may never end."""


def main(
    control: socket.socket,
    folder: str,
    modules: Sequence[str] = (),
    packages: Sequence[str] = (),
    *,
    compiler: bool = False,
    on_gpu: bool = False,
    eager: bool = False,
    without_packages: Sequence[str] = (),
) -> None:
    """Serve requests until the referee's end of the socket closes, then kill every child and remove
    `folder`.

    `modules` are imported before the first fork, and their `warm_up(folder)`, if any, is called; it
    must leave no thread. `packages` are imported if they are safe to fork. If one is not, the
    program starts again with the command `without_packages` (by default its own command without
    packages). With `compiler`, torch.compile is imported after the first fork while no request
    waits, or before the first fork if `eager`. `on_gpu`: children use a GPU, so no import may start
    CUDA.
    """
    if packages and not import_packages(packages, on_gpu=on_gpu):
        command = without_packages or _without_packages(sys.orig_argv, packages)
        os.execv(sys.executable, list(command))
    try:
        later = compiler_steps(on_gpu=on_gpu) if compiler else []
        while eager and later:
            later.pop(0)()
        _serve(control, Path(folder), modules, later)
    finally:
        remove(Path(folder))


def _without_packages(command: Sequence[str], packages: Sequence[str]) -> list[str]:
    """Return the fork server's command with an empty tuple of packages."""
    return [word.replace(f", {tuple(packages)!r}", ", ()") for word in command]


def _serve(
    control: socket.socket,
    folder: Path,
    modules: Sequence[str],
    waiting: list[Step],
) -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the referee handles Ctrl-C
    pin_allocator()
    send_message(control, {"ready": os.getpid(), "threads": _warm_up(folder, modules)})
    children: set[int] = set()
    while True:
        if waiting and children and not _is_readable(control, IDLE_S):
            waiting.pop(0)()
            continue
        if (received := receive_message(control)) is None:
            break
        message, descriptors = received
        if message["do"] == "fork":
            pid = os.fork()
            if pid == 0:
                _child(control, message, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            children.add(pid)
            send_message(control, {"pid": pid})
        elif message["do"] == "end":
            children.discard(message["pid"])
            status = _end(message["pid"])
            _end_orphans(children)
            send_message(control, {"status": status})
    for pid in children:
        _end(pid)
    _end_orphans(set())


def _is_readable(control: socket.socket, seconds: float) -> bool:
    return bool(select.select([control], [], [], seconds)[0])


def _warm_up(folder: Path, modules: Sequence[str]) -> int:
    """Import what children need and return the number of threads that torch will use in each
    child."""
    gc.disable()  # imports create no garbage, and collecting makes them a tenth slower
    import numpy  # noqa: F401
    import torch

    # Imported now, because a child in the sandbox may not read our files.
    import cuagent.kernels.calls
    import cuagent.kernels.cuda_graph
    import cuagent.kernels.driver
    import cuagent.kernels.operators
    import cuagent.kernels.together
    import cuagent.worker.program  # noqa: F401

    for name in modules:
        module = importlib.import_module(name)
        if hasattr(module, "warm_up"):
            module.warm_up(folder)
    threads = torch.get_num_threads()
    # All live objects stay. The collector must not touch their pages, which would copy them in
    # every child.
    gc.freeze()
    gc.enable()
    return threads


def _child(control: socket.socket, message: dict[str, Any], descriptors: list[int]) -> None:
    """Run a session in a forked process: own process group and output, no inherited descriptor
    except the channel.

    Never returns.
    """
    code = DEFECT
    try:
        sys.dont_write_bytecode = True
        control.close()
        channel = _arrange(message, descriptors)
        _show_name(message["program"])
        importlib.import_module(message["program"]).serve(channel, Path(message["folder"]))
        code = 0
    except BaseException:  # noqa: BLE001  process boundary: no exception may reach the main loop
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _show_name(program: str) -> None:
    """Set the name that `top` and `ps` show for this process; a worker shows its arm."""
    name = program.removeprefix("cuagent.")
    with contextlib.suppress(OSError, KeyError, ValueError):
        name = json.loads(Path("order.json").read_text())["arm"]
    buffer = ctypes.create_string_buffer(name.encode()[-_SHOWN_BYTES:])
    ctypes.CDLL(None).prctl(_PR_SET_NAME, buffer, 0, 0, 0)


def _arrange(message: dict[str, Any], descriptors: list[int]) -> socket.socket:
    os.setsid()
    devnull = os.open(os.devnull, os.O_RDONLY)
    channel, output = descriptors
    # Move the sources above the targets first, so that no dup2 overwrites a needed source.
    channel, output, devnull = (move_up(fd) for fd in (channel, output, devnull))
    for source, target in ((devnull, 0), (output, 1), (output, 2), (channel, 3)):
        os.dup2(source, target, inheritable=target < 3)
    os.closerange(4, os.sysconf("SC_OPEN_MAX"))
    sys.stdout = open(1, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="replace", closefd=False)  # noqa: SIM115
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(message["environment"])
    os.chdir(message["folder"])
    random.seed()
    if message["policy"] is not None:
        _prefer_for_oom_kill()
        enter(policy_from_json(message["policy"]), Tier(message["tier"]))
    forget_folders()  # the sandbox decides where temporary files may lie
    # Last, because a change of user id clears it.
    _die_with_parent()
    return socket.socket(fileno=3)


def _prefer_for_oom_kill() -> None:
    """Make the kernel kill this untrusted process before others if the machine runs out of
    memory."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def move_up(descriptor: int) -> int:
    """Return a copy of a descriptor with a number of at least 16, which no later `dup2`
    overwrites."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 16)


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)


def _end(pid: int) -> int | None:
    """Kill the process group `pid` and return the wait status; None if the process does not die."""
    # Kill before waitpid: afterwards the number may belong to another process.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while (status := _wait_status(pid)) is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return status


def _wait_status(pid: int) -> int | None:
    try:
        gone, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return status if gone else None


def _end_orphans(children: set[int]) -> None:
    """Kill the processes that candidates left behind, until no new ones appear."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        listed = Path(f"/proc/self/task/{os.getpid()}/children")
        orphans = {int(pid) for pid in listed.read_text().split()} - children
        if not orphans:
            return
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _wait_status(pid)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")
