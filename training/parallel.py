"""Communicate between the processes that torchrun starts (data parallelism).

With one process the functions return their argument unchanged, or do nothing.

Every process has the whole (small) batch of token ids and computes the forward and backward passes
of its share of the microbatches. Losses are sums over tokens divided by the global count, so
gradients are simply added. All processes play episodes.
Not covered: sharded models, which add their gradients themselves (`placement.py`).
Invariant: after each update all processes have the same weights, equal to those of one process up
to the order of additions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

TIMEOUT = timedelta(hours=2)
"""Longest time that a process waits for the other processes, which may still be playing
episodes."""
BUCKET = 1 << 25
"""Approximate number of gradient elements summed in one message; it bounds the extra memory."""


def start(device: str) -> str:
    """Join the process group if torchrun started several processes.

    Return the device that this process must use, such as `cuda:1`.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return device
    local = int(os.environ["LOCAL_RANK"])
    if device != "cuda":
        dist.init_process_group("gloo", timeout=TIMEOUT)
        return device
    torch.cuda.set_device(local)
    own = torch.device("cuda", local)
    dist.init_process_group("nccl", timeout=TIMEOUT, device_id=own)
    return str(own)


def stop() -> None:
    """Leave the process group; call this when models and optimizers are not needed any more."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def local_share(items: Sequence[T]) -> Sequence[T]:
    """Return the items that this process handles: items `rank`, `rank + size`, `rank + 2 * size`,
    ..."""
    return items[rank() :: size()]


def gather_interleaved(items: Sequence[T]) -> list[T]:
    """Return the items of all processes in their original order.

    `items`: the items of this process, as `local_share` selected them.
    """
    if size() == 1:
        return list(items)
    found: list[Any] = [None] * size()
    dist.all_gather_object(found, list(items))
    whole: list[T] = []
    for at in range(max(len(part) for part in found)):
        whole += [part[at] for part in found if at < len(part)]
    return whole


def sum_tensor(x: Tensor) -> Tensor:
    """Return the sum of `x` over all processes, on the device of `x`."""
    if size() == 1:
        return x
    on_device = x.to(_device())
    dist.all_reduce(on_device)
    return on_device.to(x.device)


def sum_number(number: float) -> float:
    """Return the sum of a number over all processes."""
    return float(sum_tensor(torch.tensor(number, dtype=torch.float64)))


def add_gradients(model: Any) -> None:
    """Replace each gradient of `model` by its sum over all processes.

    A parameter that has no gradient in one process counts as zero there.
    """
    if size() == 1:
        return
    bucket: list[Tensor] = []
    for p in model.parameters():
        if not p.requires_grad:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        bucket.append(p.grad)
        if sum(g.numel() for g in bucket) >= BUCKET:
            _add(bucket)
            bucket = []
    if bucket:
        _add(bucket)


def _add(gradients: Sequence[Tensor]) -> None:
    flat = torch.cat([g.flatten().float() for g in gradients])
    dist.all_reduce(flat)
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        g.copy_(part.view_as(g))


def _device() -> torch.device:
    cuda = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
