"""What a candidate is tried on: kinds of inputs and of weights, each drawn from a secret seed.

A derived kind replaces the floating tensors of the task's own inputs and leaves integers, booleans
and scalars as they are. It is used only where the reference stays finite on it.

Only zero-mean inputs judge precision: on one-signed sums a sequential fp32 kernel and a TF32 kernel
have errors of one size (research: ratios 48 and 42), on zero-mean ones they lie 90 apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

LARGE_OFFSET = 1e4
"""An offset of 500 is too small to show a one-pass variance in fp32."""


class Inputs(StrEnum):
    """Kinds of inputs."""

    OWN = "own"
    """What the task's get_inputs or --inputs draws."""
    NORMAL = "normal"
    """Zero mean, unit variance: judges precision."""
    ONE_SIGNED = "one-signed"
    """Uniform in [0, 1)."""
    MIXED = "mixed magnitude"
    """Normal, each row scaled by 2^-8 .. 2^8."""
    OFFSET = "large offset"
    """Normal around 1e4: overflow in softmax, cancellation in a one-pass variance."""
    INTEGER = "integer"
    """-2 .. 2; with integer weights a sum of products is exact in every admitted arithmetic."""


class Weights(StrEnum):
    """Kinds of weights."""

    OWN = "own"
    """As the constructor draws them."""
    SHAKEN = "shaken"
    """Moved off special values: a fresh BatchNorm or LayerNorm is an identity."""
    INTEGER = "integer"
    """-1, 0, 1."""


def derive(kind: Inputs, own: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Inputs of `kind` in the forms of the task's own."""
    if kind is Inputs.OWN:
        return list(own)
    generator = _generator(own, seed)
    return [
        _drawn(kind, tensor, generator) if tensor.is_floating_point() else tensor for tensor in own
    ]


def shake(
    kind: Weights, state: dict[str, Tensor], parameters: frozenset[str], seed: int
) -> dict[str, Tensor]:
    """A state dict of `kind` from the constructor's.

    Floating buffers other than running statistics (masks, tables) are constants of the module, not
    something it learns, and stay.
    """
    if kind is Weights.OWN:
        return state
    import torch

    generator = _generator(list(state.values()), seed)
    changed = dict(state)
    for name, tensor in state.items():
        learned = name in parameters or name.endswith("running_mean")
        if not tensor.is_floating_point():
            continue
        if kind is Weights.INTEGER and learned:
            changed[name] = _randn(tensor, generator).round().clamp(-1, 1).to(tensor.dtype)
        elif kind is Weights.SHAKEN and learned:
            changed[name] = _shaken(tensor, generator)
        elif kind is Weights.SHAKEN and name.endswith("running_var"):
            positive = tensor.float() * torch.exp(0.3 * _randn(tensor, generator))
            changed[name] = positive.to(tensor.dtype)
    return changed


def _drawn(kind: Inputs, tensor: Tensor, generator: Generator) -> Tensor:
    import torch

    normal = _randn(tensor, generator)
    match kind:
        case Inputs.ONE_SIGNED:
            drawn = torch.special.ndtr(normal)
        case Inputs.MIXED:
            rows = _randn(tensor[..., :1] if tensor.dim() else tensor, generator)
            drawn = normal * torch.exp2((rows * 4).round().clamp(-8, 8))
        case Inputs.OFFSET:
            drawn = normal + LARGE_OFFSET
        case Inputs.INTEGER:
            drawn = (normal * 1.2).round().clamp(-2, 2)
        case _:
            drawn = normal
    return drawn.to(tensor.dtype)


def _shaken(tensor: Tensor, generator: Generator) -> Tensor:
    import torch

    noise, wide = _randn(tensor, generator), tensor.float()
    rms = wide.square().mean().sqrt() if tensor.numel() else wide.sum()
    scale = torch.where(rms > 0, rms, torch.ones_like(rms))
    return (wide + 0.2 * scale * noise).to(tensor.dtype)


def _randn(tensor: Tensor, generator: Generator) -> Tensor:
    """Standard normal fp32 (fp64 for fp64) of the tensor's shape."""
    import torch

    dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    shape = tuple(tensor.shape)
    return torch.randn(shape, generator=generator, dtype=dtype, device=tensor.device)


def _generator(tensors: Sequence[Tensor], seed: int) -> Generator:
    import torch

    device = tensors[0].device if tensors else torch.device("cpu")
    return torch.Generator(device=device).manual_seed(seed)
