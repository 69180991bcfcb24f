"""Estimate the GPU memory that a problem needs, which it claims before it starts
(`memory_queue.py`).

The size of one call is found without allocation, by running the reference on fake tensors in a
trusted child process. Not covered: memory of other programs, and memory that a candidate allocates
beyond its claim; a problem that fails for lack of memory runs again alone (`scheduler.py`).
"""

from __future__ import annotations

import json
import select
import shutil
import socket
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cuagent.bench.order import Order
from cuagent.task import Device, Task, TaskError, load_task, open_reference
from cuagent.task.memory import SHARE
from cuagent.task.plain import task_from_json, task_to_json
from cuagent.verify.memory_plan import FP64_OVER_FP32, MemoryPlan
from cuagent.verify.trace.live_bytes import LiveBytes
from cuagent.worker import ForkServer, ForkServerError
from cuagent.worker.channel import receive_message, send_message

REQUEST = "size.json"
SIZE_S = 60.0
"""Time limit in seconds for finding the memory size of a call."""
CALLS_HELD = 30
"""Memory that a usual verdict and timing need at the same time, in multiples of one call's
tensors. Four problems on an H200 needed 14 to 28 of them."""
LARGE_RESERVE = 1.5
"""Memory that a large task claims, as a multiple of its memory plan (`verify/memory_plan.py`). The
plan is within 20 % of the measured peak; allocators and libraries need the rest."""
LARGE_SLICES = 8
"""Assumed number of slices of a large task's fp64 reference. A reference that cannot run in slices
may lack memory, and runs again alone."""
LARGE_ARMS = 3
"""Number of models in a timing of a large task: the attempt, eager and a rung."""
RUNS_HELD = 8
"""Number of processes whose allocators hold the memory of a call's intermediate results at the same
time, such as the arms of a timing.

Without this term, a convolution that a pool follows used all the memory of three other problems
(H100).
"""
CONTEXTS = 6 << 30
"""Memory in bytes of the CUDA contexts of all processes of one problem."""
USABLE = 0.95
"""Largest share of a GPU's memory that all claims together may reach."""
UNKNOWN_PART = 1 / 3
"""Share of the memory that a problem of unknown size claims."""


@dataclass(frozen=True)
class Size:
    """GPU memory that a problem needs, in bytes."""

    call: int | None
    """Bytes of the inputs, weights and outputs of one call; None if the reference does not run on
    fake tensors."""
    total: int
    """Total memory of the GPU in bytes."""
    between: int = 0
    """Bytes of intermediate results that exist at the same time within one call."""
    inputs: int = 0
    """Bytes of the inputs."""
    outputs: int = 0
    """Bytes of the outputs."""
    precise: int = 0
    """Bytes of the outputs in fp64."""

    @property
    def claim(self) -> int:
        """Return the bytes of GPU memory to reserve for the problem, at most `USABLE` of the GPU's
        memory.

        If one call in float32 takes more than `SHARE` of the memory, the plan for large tasks
        applies.
        """
        if self.call is None:
            return int(UNKNOWN_PART * self.total)
        if self.is_large:
            needed = int(LARGE_RESERVE * max(self._judged, self._certified))
        else:
            needed = CALLS_HELD * self.call + RUNS_HELD * self.between
        return min(self.usable, CONTEXTS + needed)

    @property
    def _judged(self) -> int:
        """Bytes that a large task needs while it is judged and timed, without contexts."""
        plan = MemoryPlan(
            inputs=self.inputs,
            outputs=self.outputs,
            precise=self.precise,
            spread=self.precise // 4,  # in bf16
            state=self._state,
            temporary=self.between,
            slices=LARGE_SLICES,
            widening=max(FP64_OVER_FP32, -(-self.precise // max(1, self.outputs))),
            large=True,
            on_gpu=True,
        )
        return max(plan.verdict, plan.timing(LARGE_ARMS))

    @property
    def _certified(self) -> int:
        """Bytes that the certification of a large task needs, which ends before it is judged.

        It holds the inputs of two draws, one of them also with a part left out, and the outputs of
        both, of the current call and their copies (`examine.py`).
        """
        return 4 * (self.inputs + self.outputs) + 2 * self._state + self.between

    @property
    def _state(self) -> int:
        """Bytes of the weights."""
        return max(0, (self.call or 0) - self.inputs - self.outputs)

    @property
    def is_large(self) -> bool:
        """Return True if the memory may not suffice for processes that could also start later."""
        if self.call is None:
            return True
        as_float32 = self.call * max(1.0, self.precise / max(1, self.outputs) / FP64_OVER_FP32)
        return as_float32 > SHARE * self.total > 0

    @property
    def usable(self) -> int:
        """Return the bytes that all claims together may reach."""
        return int(USABLE * self.total)

    @property
    def share(self) -> float:
        """Return the claim as a share of the usable memory; 0 without a GPU."""
        return self.claim / self.usable if self.usable else 0.0

    @property
    def takes_most(self) -> bool:
        """Return True if the claim leaves less than half of the usable memory to other problems."""
        return self.claim > self.usable / 2


def sized(order: Order, fork_server: ForkServer) -> dict[str, Any]:
    """Return {"size": the fields of the `Size` of an order's problem}; None for a task that cannot
    be loaded or sized."""
    settings = order.settings
    try:
        task = load_task(order.path, device=settings.device, precision=settings.precision)
        return {"size": asdict(size_of(task, fork_server))}
    except (TaskError, ForkServerError):
        return {"size": None}


def size_of(task: Task, fork_server: ForkServer) -> Size:
    """Return the memory size of a task on its GPU. Raises ForkServerError and TaskError."""
    folder = Path(tempfile.mkdtemp(prefix="size-", dir=fork_server.folder))
    (folder / REQUEST).write_text(json.dumps(task_to_json(task)), encoding="utf-8")
    child = fork_server.fork("cuagent.bench.memory", folder, {})
    try:
        ended, _, _ = select.select([child.channel], [], [], SIZE_S)
        received = receive_message(child.channel) if ended else None
    finally:
        fork_server.end(child)
        shutil.rmtree(folder, ignore_errors=True)
    if received is None:
        raise TaskError(f"{task.path}: the size of a call was not found in {SIZE_S:.0f} s")
    return Size(**received[0])


def serve(channel: socket.socket, folder: Path) -> None:
    """Read the task from `folder` and send the size of one call and of the GPU's memory, in
    bytes."""
    import torch

    task = task_from_json(json.loads((folder / REQUEST).read_text(encoding="utf-8")))
    # Unlike `mem_get_info`, this creates no CUDA context, which would take a second.
    total = torch.cuda.get_device_properties(0).total_memory if task.device == "cuda" else 0
    send_message(channel, bytes_of_call(task) | {"total": total})


def bytes_of_call(task: Task) -> dict[str, int | None]:
    """Return the sizes in bytes of one call's tensors, by the names of the fields of `Size`.

    `call` is None if the reference does not run on fake tensors. The sizes are those on a CPU: fake
    weights cannot be moved to a GPU, and an operator refuses tensors of two devices. Changes
    `nn.Module._apply` for the rest of the process.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def unmoved(module: torch.nn.Module, *_: Any, **__: Any) -> torch.nn.Module:
        return module

    # Fake parameters cannot be replaced in place, and moving them changes no size.
    torch.nn.Module._apply = unmoved  # type: ignore[method-assign, assignment]
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            reference = open_reference(replace(task, device=Device.CPU))
            model, inputs = reference.model(0), reference.inputs(0)
            held = [*inputs, *model.state_dict().values()]
            live = LiveBytes()
            try:
                results = live.measure(lambda: model(*inputs))
            except Exception:  # noqa: BLE001 - any code of the user; outputs are as large as inputs
                results = inputs
    except Exception:  # noqa: BLE001 - any code of the user; the judge reports what does not run
        return {"call": None}
    outputs = _size(results)
    return {
        "call": _size(held) + outputs,
        "between": max(0, live.peak - outputs),
        "inputs": _size(inputs),
        "outputs": outputs,
        "precise": _size(results, precise=True),
    }


def _size(tree: Any, *, precise: bool = False) -> int:
    """Return the total bytes of all tensors in nested containers; with `precise` as if those of
    floating-point numbers were in fp64."""
    import torch
    from torch.utils import _pytree

    leaves = [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
    return sum(
        leaf.numel() * (8 if precise and leaf.is_floating_point() else leaf.element_size())
        for leaf in leaves
    )
