"""Where a model's weights lie, and how it computes: sharded or not, bf16, recomputation.

For: the same training loops on a laptop, on one GPU, with a replica on every GPU, or with weights,
gradients and optimizer sharded over all GPUs of one or several nodes (FSDP2, `fully_shard`).
Not covered: how the batch is divided (`parallel.py`), loading and saving (`model.py`).
Invariants: gradients are sums over processes, whatever the placement, because the losses are sums
divided by global counts; outside a forward or backward pass a sharded model holds shards only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cuagent.training import parallel


class Dtype(StrEnum):
    FP32 = "float32"
    BF16 = "bfloat16"

    @property
    def torch(self) -> torch.dtype:
        return torch.bfloat16 if self is Dtype.BF16 else torch.float32


@dataclass(frozen=True)
class Placement:
    """How a model is laid out for training."""

    sharded: bool = False
    """Weights, gradients and optimizer divided over the processes, for models that fit no GPU."""
    compute: Dtype = Dtype.FP32
    """Of products. bfloat16 beside fp32 weights loses no small update, unlike weights of bf16."""
    recompute: bool = False
    """Activations of a layer are computed again in the backward pass instead of kept."""


def place(model: Any, placement: Placement, device: str | torch.device) -> Any:
    """The model on its device(s), ready for training; make its optimizer afterwards.

    With one process `sharded` changes nothing: there is nobody to share with.
    """
    kind = torch.device(device).type
    if placement.recompute:
        recompute_layers(model)
    if placement.sharded and parallel.size() > 1:
        return shard(model, placement.compute, kind)
    model.to(device)
    if placement.compute is Dtype.BF16:
        model.forward = torch.autocast(kind, torch.bfloat16)(model.forward)
    return model


def shard(model: Any, compute: Dtype, kind: str) -> Any:
    """Divide every layer, then the rest, over all processes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(kind, (parallel.size(),))
    low = compute.torch if compute is Dtype.BF16 else None
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
    for module in [*layers(model), model]:
        # The root too gives its weights back after a forward: scoring has no backward that would,
        # and a checkpoint loaded in between would leave old ones standing.
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    return model


def layers(model: Any) -> list[torch.nn.Module]:
    """The repeated blocks of a transformer: its longest list of modules."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return list(max(lists, key=len, default=[]))


def recompute_layers(model: Any) -> None:
    """Unlike transformers' own switch this holds in evaluation mode too, in which PPO computes."""
    for layer in layers(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def is_sharded(model: Any) -> bool:
    """Whether this process holds only a part of the weights."""
    return any(hasattr(p, "full_tensor") for p in model.parameters())


def sum_gradients(model: Any) -> None:
    """Let every process hold the sum over all processes of the gradients that it is to apply."""
    if not is_sharded(model):
        parallel.add_gradients(model)
        return
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(parallel.size())  # FSDP2 has taken the mean; its sums do not work on gloo


@torch.no_grad()
def copy_weights(model: Any, into: Any) -> None:
    """Give the weights of a (sharded) model to a whole one of its kind; all processes together.

    One tensor at a time: at no moment are there two whole models beside each other.
    """
    theirs = dict(into.named_parameters())
    for name, weight in model.named_parameters():
        theirs[name].copy_(unshard(weight))


def full_state_dict(model: Any) -> dict[str, Any] | None:
    """All weights on the CPU of the first process, for saving; None where nothing is sharded."""
    if not is_sharded(model):
        return None
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )


def unshard(x: Tensor) -> Tensor:
    """A tensor from its shards, on every process."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x
