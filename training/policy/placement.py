"""Place a model: replicated or sharded, with bf16 compute and recomputation as options.

The same training loops run on a laptop, on one GPU, with a replica on every GPU, or with weights,
gradients and optimizer sharded over all GPUs of one or several nodes (FSDP2, `fully_shard`).
Not covered: how the batch is divided (`parallel.py`), loading and saving (`model.py`).
Invariants: gradients are sums over processes for every placement, because the losses are sums
divided by global counts; outside a forward or backward pass each process has only its shards of a
sharded model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from cuagent.training import parallel
from cuagent.training.policy.head import use_fp32_heads
from cuagent.training.policy.packed_attention import use_packing

NARROW = "cuagent_narrow"
"""Attribute of an input embedding inside `narrow_sums`."""


class Dtype(StrEnum):
    FP32 = "float32"
    BF16 = "bfloat16"

    @property
    def torch(self) -> torch.dtype:
        return torch.bfloat16 if self is Dtype.BF16 else torch.float32


@dataclass(frozen=True)
class Placement:
    """Settings of how a model is placed on devices for training."""

    sharded: bool = False
    """True to divide weights, gradients and optimizer over the processes, for models too large for
    one GPU."""
    compute: Dtype = Dtype.FP32
    """Type in which matrix products are computed. With bfloat16 the weights may stay fp32, so that
    small updates are not lost."""
    recompute: bool = False
    """True to recompute a layer's activations in the backward pass instead of storing them."""
    packed: bool = True
    """True to train on rows packed one after the other, without padding. Models that do not support
    packed rows use padded rows."""


def place(model: Any, placement: Placement, device: str | torch.device) -> Any:
    """Return the model replicated or sharded on its device(s), ready for training. Create its
    optimizer afterwards.

    With one process `sharded` has no effect. Only matrix products and attention are computed in 16
    bits. Sums over the layers, logits and values are fp32 for every type of the weights: rounding
    them would more than double the difference between sampler and trainer
    (`docs/research/scale.md`).
    """
    kind = torch.device(device).type
    low = placement.compute.torch if placement.compute is Dtype.BF16 else model.dtype
    if placement.recompute:
        recompute_layers(model)
    if placement.sharded and parallel.size() > 1:
        model = shard(model, low, kind)
    else:
        model.to(device)
    if low is not torch.float32:
        model.forward = torch.autocast(kind, low)(model.forward)
        model.get_input_embeddings().register_forward_hook(widen)
    use_fp32_heads(model)
    if placement.packed:
        use_packing(model)
    return model


def widen(module: torch.nn.Module, inputs: Any, embedded: Tensor) -> Tensor:
    """Return the embedded tokens in fp32, so that the sums over the layers are fp32: the hook after
    a model's input embedding."""
    return embedded if getattr(module, NARROW, False) else embedded.float()


@contextmanager
def narrow_sums(model: Any) -> Iterator[None]:
    """Leave the sums over the layers in the weights' type inside this context, for attention that
    refuses fp32 queries."""
    embedding = model.get_input_embeddings()
    setattr(embedding, NARROW, True)
    try:
        yield
    finally:
        delattr(embedding, NARROW)


def shard(model: Any, compute: torch.dtype, kind: str) -> Any:
    """Return the model sharded over all processes by FSDP2; every layer is one unit. `kind`: device
    type, such as `cuda`. `compute`: type of the gathered weights."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(kind, (parallel.size(),))
    policy = MixedPrecisionPolicy(
        param_dtype=None if compute is torch.float32 else compute,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # the sums over the layers stay fp32
    )
    for module in [*layers(model), model]:
        # The root module must reshard after a forward pass too. Scoring has no backward pass that
        # would do it, and weights gathered before a checkpoint is loaded would stay in use.
        fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    return model


def layers(model: Any) -> list[torch.nn.Module]:
    """Return the repeated blocks of a transformer: the modules of its longest ModuleList."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return list(max(lists, key=len, default=[]))


def recompute_layers(model: Any) -> None:
    """Make each layer recompute its activations in the backward pass, also in evaluation mode.

    PPO trains in evaluation mode, where the switch of transformers has no effect.
    """
    for layer in layers(model):
        layer.forward = partial(recomputed, layer.forward)


def recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `forward` without storing its activations, which are computed again in the backward
    pass.

    If gradients are disabled it is a plain call: `checkpoint` would read the state of the GPU's
    generator in each layer, which costs time and cannot be recorded in a CUDA graph.
    """
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


def is_sharded(model: Any) -> bool:
    """Return True if this process has only a part of the model's weights."""
    return any(hasattr(p, "full_tensor") for p in model.parameters())


def sum_gradients(model: Any) -> None:
    """Replace each gradient by its sum over all processes; in a sharded model, each shard of a
    gradient."""
    if not is_sharded(model):
        parallel.add_gradients(model)
        return
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(parallel.size())  # undo FSDP2's mean; its sum fails on gloo


@torch.no_grad()
def copy_weights(model: Any, into: Any) -> None:
    """Copy the weights of a model, sharded or not, into an unsharded one; all processes must call
    it together.

    One tensor is copied at a time, so the full weights are never in memory twice.
    """
    targets = dict(into.named_parameters())
    for name, weight in model.named_parameters():
        targets[name].copy_(unshard(weight))


def full_state_dict(model: Any) -> dict[str, Any] | None:
    """Return all weights of a sharded model, on the CPU of the first process, for saving; None if
    the model is not sharded."""
    if not is_sharded(model):
        return None
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )


def unshard(x: Tensor) -> Tensor:
    """Return the full tensor of a sharded tensor, on every process; other tensors unchanged."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x
