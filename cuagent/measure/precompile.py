"""Compile the rungs of torch.compile in advance, while other problems may use the device.

A trusted child builds the model and its inputs while it holds the device lock shared. It then
compiles on the processors without any lock. Autotuning compiles its candidate kernels in the same
way, and takes the lock exclusively only while it runs them (`tuning_lock.py`). The results are
stored in the caches that the timed processes use (`surroundings.compiled_graphs`), so that these
start in seconds.

Not covered: graphs after a graph break, and the tuning of Triton's launch parameters, which needs
the device. Those are compiled when the rung's process starts.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from cuagent.arms import EAGER
from cuagent.device_lock import DeviceLock, Sharing
from cuagent.durations import Stage
from cuagent.lock_uses import LockUses
from cuagent.measure.timing.surroundings import compiled_graphs
from cuagent.measure.tuning_lock import tune_exclusively
from cuagent.task import Task, TaskError, Values, open_reference
from cuagent.task.plain import task_from_json, task_to_json
from cuagent.task.settings import arm_settings, read_settings
from cuagent.verify.oracle.process import ONE_QUEUE
from cuagent.worker import ForkServer
from cuagent.worker.channel import receive_message, send_message
from cuagent.worker.channels_last import to_channels_last
from cuagent.worker.fork_server import Child
from cuagent.worker.giving_way import receive_from_child

REQUEST = "precompile.json"
OPEN_S, COMPILE_S = 120.0, 300.0
"""Time limits in seconds for building the model, and for compiling all rungs."""
TUNED = "max-autotune"
MANY_OPERATORS = 100
"""Number of nodes of a graph above which several processes compile its kernels. These processes
take five seconds to start; one process compiles some ten kernels in that time."""
COMPILERS, MOST_COMPILERS = 4, 12
"""Smallest and largest number of compiler processes for a large graph or for autotuning. It is
small because other problems compile at the same time; half of the processors that were idle are
used."""


class Listed(Protocol):
    """List of the processes that compile now, which another thread may kill."""

    def add(self, child: Child) -> None:
        """Note a process that has started."""
        ...

    def remove(self, child: Child) -> None:
        """Note a process that will be ended."""
        ...


def precompile(
    task: Task,
    rungs: Sequence[str],
    fork_server: ForkServer,
    lock: DeviceLock,
    limit_s: float = COMPILE_S,
    listed: Listed | None = None,
    goes_on: Callable[[str], bool] = lambda _: True,
) -> list[str]:
    """Compile these rungs; return the names of those whose processes will start quickly.

    Rungs that did not finish within `limit_s` seconds are not returned. A failed compilation is
    reported later, when the rung's process starts. The process that compiles is in `listed`;
    if it is killed, the rungs that it has finished are returned. `goes_on` is called
    with each rung that is compiled; False ends the compilation. Raises ForkServerError.
    """
    names = [name for name in rungs if name.partition("+")[0] != EAGER]
    quick = [name for name in rungs if name not in names]
    if not names:
        return quick
    folder = Path(tempfile.mkdtemp(prefix="precompile-", dir=fork_server.folder))
    file = None if lock.lock is None else str(lock.lock.resolve())
    request = {"task": task_to_json(task), "rungs": names, "lock": file}
    (folder / REQUEST).write_text(json.dumps(request), encoding="utf-8")
    with lock.durations.of(Stage.OPENING_ARMS), lock.shared() as sharing:
        environment = compiled_graphs() | ONE_QUEUE
        child = fork_server.fork("cuagent.measure.precompile", folder, environment)
        if listed is not None:
            listed.add(child)
        ready = _ready(fork_server, child, sharing)
    tunes = any(TUNED in name for name in names)
    try:
        with lock.durations.of(Stage.AUTOTUNING if tunes else Stage.COMPILING_AHEAD):
            if ready:
                with suppress(BrokenPipeError):  # it was killed
                    send_message(child.channel, {"do": "compile"})
                for name in _done(child.channel, time.monotonic() + limit_s, lock):
                    quick.append(name)
                    if not goes_on(name):
                        break
    finally:
        if listed is not None:
            listed.remove(child)
        fork_server.end(child)
        shutil.rmtree(folder, ignore_errors=True)
    return quick


def _ready(fork_server: ForkServer, child: Child, sharing: Sharing) -> bool:
    """Wait until the child has built its model; return False if it failed or took too long."""
    with suppress(TimeoutError):
        received = receive_from_child(fork_server, child, sharing, OPEN_S)
        return received is not None and bool(received[0]["ready"])
    return False


def _done(channel: socket.socket, deadline: float, lock: DeviceLock) -> Iterator[str]:
    """Yield the name of each rung that the child has compiled, until it ends or `deadline` passes;
    add the child's uses of the lock to those of `lock`.

    `deadline` is a time of the monotonic clock in seconds.
    """
    while answer := _answer(channel, max(0.0, deadline - time.monotonic())):
        lock.uses.add_child(answer["lock"])
        yield answer["done"]


def _answer(channel: socket.socket, limit_s: float) -> dict[str, Any]:
    """Return the child's next message; {} if it ended, or if none arrives within `limit_s`
    seconds."""
    ended, _, _ = select.select([channel], [], [], limit_s)
    received = receive_message(channel) if ended else None
    return {} if received is None else received[0]


class Compiled(Exception):
    """Raised within a call after its graph was compiled, so that the graph does not run."""


def serve(channel: socket.socket, folder: Path) -> None:
    """Build the model in the child, report this, and then compile it for each rung on request."""
    order = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    file = None if order["lock"] is None else Path(order["lock"])
    lock = DeviceLock(file, uses=LockUses(Stage.AUTOTUNING))
    try:
        task = task_from_json(order["task"])
        reference = replace(open_reference(task), values=Values.DRAWN_THERE)
        model, inputs = reference.model(0), reference.inputs(0)
        own = read_settings()
    except TaskError:
        send_message(channel, {"ready": False})
        return
    send_message(channel, {"ready": True})
    if receive_message(channel) is None:
        return
    tuning = tune_exclusively(lock)
    for name in order["rungs"]:
        arm_settings(own, task.precision, name.split("+")[1:]).apply()
        with nullcontext() if tuning or TUNED not in name else lock.exclusive():
            compile_only(model, inputs, name)
        if tuning:
            tuning.release()
        send_message(channel, {"done": name, "lock": lock.uses.taken()})


def _compilers() -> int:
    """Return the number of compiler processes to start, from the load of the last minute."""
    idle = len(os.sched_getaffinity(0)) - os.getloadavg()[0]
    return max(COMPILERS, min(MOST_COMPILERS, int(idle / 2)))


def compile_only(model: Any, inputs: Sequence[Any], name: str) -> bool:
    """Compile the first graph of the rung `name` without running it; return True if that succeeded.

    It returns False for a rung that uses bf16, which is compiled only when its process starts.
    """
    import torch
    from torch._inductor import config

    mode, *options = name.split("+")
    if "bf16" in options:
        return False  # seldom the best: compiled when it is opened
    tensors = [*model.parameters(), *model.buffers()]
    own = [tensor.data for tensor in tensors]
    if "channels_last" in options:
        to_channels_last(model)
    inductor = torch._TorchCompileInductorWrapper(
        "default" if mode == "compile" else mode, None, None
    )
    compiled = []

    def backend(graph: Any, examples: Any) -> NoReturn:
        tunes, operators = TUNED in mode, len(graph.graph.nodes)
        config.compile_threads = _compilers() if tunes or operators > MANY_OPERATORS else 1
        inductor(graph, examples)
        compiled.append(name)
        raise Compiled

    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(model, backend=backend)(*inputs)
    except Exception:  # noqa: BLE001 - `Compiled`, which dynamo wraps, or a fault that opening shows
        pass
    finally:  # the next rung starts with the module's own layouts
        for tensor, data in zip(tensors, own, strict=True):
            tensor.data = data
    return bool(compiled)
