"""Compile the rungs of torch.compile ahead, while other problems may use the device.

A trusted child builds the model and its inputs under the shared lock. It then compiles without any
lock and calls no kernel, so it disturbs no timing: the compilers run on the processors. The
result lands in the caches that the timed processes use (`surroundings.compiled_graphs`), which then
open in seconds. Not covered: graphs after a graph break, and the tuning of Triton's launch
parameters, which need the device; they are compiled when a rung is opened.
"""

from __future__ import annotations

import json
import select
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from cuagent.arms import EAGER
from cuagent.device_lock import DeviceLock
from cuagent.measure.timing.surroundings import compiled_graphs
from cuagent.task import Task, TaskError, open_reference
from cuagent.task.plain import task_from_json, task_to_json
from cuagent.task.settings import arm_settings, read_settings
from cuagent.worker import ForkServer
from cuagent.worker.channel import receive_message, send_message

REQUEST = "precompile.json"
OPEN_S, COMPILE_S = 120.0, 300.0
"""Time limits in seconds, of opening the model and of compiling all rungs."""


def precompile(
    task: Task, rungs: Sequence[str], fork_server: ForkServer, lock: DeviceLock
) -> list[str]:
    """Compile the rungs and return those that are done. A failure shows when the rung is opened.

    Raises ForkServerError.
    """
    names = [name for name in rungs if name.partition("+")[0] != EAGER]
    if not names:
        return []
    folder = Path(tempfile.mkdtemp(prefix="precompile-", dir=fork_server.folder))
    request = {"task": task_to_json(task), "rungs": names}
    (folder / REQUEST).write_text(json.dumps(request), encoding="utf-8")
    with lock.shared():
        child = fork_server.fork("cuagent.bench.precompile", folder, compiled_graphs())
        ready = _answer(child.channel, OPEN_S)
    done: list[str] = []
    try:
        if ready.get("ready"):
            send_message(child.channel, {"do": "compile"})
            done = _answer(child.channel, COMPILE_S).get("done", [])
    finally:
        fork_server.end(child)
        shutil.rmtree(folder, ignore_errors=True)
    return done


def _answer(channel: socket.socket, limit_s: float) -> dict[str, Any]:
    """Return the child's next message; {} if none comes in time."""
    ended, _, _ = select.select([channel], [], [], limit_s)
    received = receive_message(channel) if ended else None
    return {} if received is None else received[0]


class Compiled(Exception):
    """Ends a call after its graph was compiled and before the graph runs."""


def serve(channel: socket.socket, folder: Path) -> None:
    """Build the model, report that it is there, and compile it for each rung on request."""
    order = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    try:
        task = task_from_json(order["task"])
        reference = open_reference(task)
        model, inputs = reference.model(0), reference.inputs(0)
        own = read_settings()
    except TaskError:
        send_message(channel, {"ready": False})
        return
    send_message(channel, {"ready": True})
    if receive_message(channel) is None:
        return
    done = []
    for name in order["rungs"]:
        arm_settings(own, task.precision, name.split("+")[1:]).apply()
        if compile_only(model, inputs, name):
            done.append(name)
    send_message(channel, {"done": done})


def compile_only(model: Any, inputs: Sequence[Any], name: str) -> bool:
    """Compile the first graph of a rung without running it; return False if that fails."""
    import torch

    mode, *options = name.split("+")
    if {"channels_last", "bf16", "cudnn_benchmark"} & set(options):
        return False  # slow to open, and seldom the best: compiled when they are opened
    inductor = torch._TorchCompileInductorWrapper(
        "default" if mode == "compile" else mode, None, None
    )
    compiled = []

    def backend(graph: Any, examples: Any) -> NoReturn:
        inductor(graph, examples)
        compiled.append(name)
        raise Compiled

    torch._dynamo.reset()
    try:
        with torch.no_grad():
            torch.compile(model, backend=backend)(*inputs)
    except Exception:  # noqa: BLE001 - `Compiled`, which dynamo wraps, or a fault that opening shows
        pass
    return bool(compiled)
