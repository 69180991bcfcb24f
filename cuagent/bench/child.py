"""Run one benchmark problem in a process that the benchmark's fork server forked (`engines.py`).

The process has already imported torch and torch.compile. It receives an `Order` and forks its own
fork server, from which the processes of candidates are forked. Only then does it receive the user's
environment, which may contain API keys, so no candidate sees them. It sends progress messages and
finally the record. Output of the user's module goes to the problem's log file. The fork server ends
the process when the benchmark ends.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

from cuagent.bench.order import Order
from cuagent.worker import ForkServer
from cuagent.worker.channel import receive_message, send_message

VISIBLE = "CUDA_VISIBLE_DEVICES"
COMPILERS = "TORCHINDUCTOR_COMPILE_THREADS"
INTERRUPTED = 130
"""Exit code of a process that was interrupted before it sent a record."""
NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
WARM = (
    "cuagent.bench.examine",
    "cuagent.bench.memory",
    "cuagent.bench.solve",
    "cuagent.expert.capture.subject",
    "cuagent.expert.search.planner",
    "cuagent.measure.precompile",
    "cuagent.models.expert",
    "cuagent.verify.oracle.server",
)
"""Modules that the benchmark's fork server imports in advance, because most problems need them."""


def serve(channel: socket.socket, folder: Path) -> None:
    """Run the problem of the order that the first message on `channel` contains."""
    if (received := receive_message(channel)) is None:
        return
    request = received[0]
    order = Order.from_json(request["order"])
    _print_to(request["log"])
    prepare(order)
    on_gpu = order.settings.device == "cuda"
    with ForkServer(
        packages=_packages(order), compiler=True, on_gpu=on_gpu, parent=folder, forked=True
    ) as fork_server:
        send_message(channel, {"forked": True})
        if (received := receive_message(channel)) is None:
            return
        code = _solve(channel, order, received[0], fork_server)
    if code:
        os._exit(code)


def _solve(
    channel: socket.socket, order: Order, here: dict[str, Any], fork_server: ForkServer
) -> int:
    """Solve the problem, or find its size, in the benchmark's environment and working folder."""
    from cuagent.bench.memory import sized
    from cuagent.bench.optimize import Interrupted
    from cuagent.bench.solve import solve
    from cuagent.device_lock import DeviceLock
    from cuagent.record import plain

    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(here["environment"])
    os.chdir(here["cwd"])
    lock_path = prepare(order)

    def send(message: dict[str, Any]) -> None:
        try:
            send_message(channel, message)
        except BrokenPipeError:
            os._exit(INTERRUPTED)

    try:
        if order.sizes_only:
            send({"record": sized(order, fork_server)})
            return 0
        record = solve(order, DeviceLock(lock_path), send, fork_server)
    except (KeyboardInterrupt, Interrupted):
        return INTERRUPTED
    send({"record": plain(record)})
    return 0


def prepare(order: Order) -> Path | None:
    """Restrict this process to the order's GPU and processor cores; return the path of the GPU's
    lock file.

    Returns None for the CPU, where problems share no cores and need no lock.
    """
    from cuagent.bench.lock_file import lock_file
    from cuagent.verify.oracle.process import ONE_QUEUE

    if order.cores:
        import torch

        os.sched_setaffinity(0, order.cores)
        os.environ["OMP_NUM_THREADS"] = str(len(order.cores))
        os.environ[COMPILERS] = str(len(order.cores))
        torch.set_num_threads(len(order.cores))  # OpenMP has read the variable already
    if order.settings.device != "cuda":
        return None
    if order.gpu is not None:
        os.environ[VISIBLE] = order.gpu
    # `measure/precompile.py` compiles the rungs earlier, so this process needs one compile thread.
    os.environ.setdefault(COMPILERS, "1")
    os.environ.update(ONE_QUEUE)  # for this process only; timed processes do not inherit it
    return lock_file(os.environ.get(VISIBLE, "0"))


def _packages(order: Order) -> tuple[str, ...]:
    """Return the names of installed packages that the problem's file imports."""
    from cuagent.task.packages import installed_imports

    try:
        return installed_imports(Path(order.path).read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ()


def _print_to(log: str) -> None:
    """Redirect the output of this process to the problem's log, an existing file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | NO_LINK)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
