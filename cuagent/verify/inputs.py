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


Range = tuple[int, int]


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
    CANCELLATION = "cancellation"
    """+-(1 + m / 2^16), half of them negative: with integer weights short sums are exact in fp32,
    and what is left of them is lost in coarser arithmetic. Further tensors are small integers."""
    TIES = "ties"
    """Multiples of a half, -2 .. 2: many equal values for argmax, sort and topk; both zeros."""
    EXTREMES = "extreme indices"
    """Integers are the least and the largest that the task draws, most of them several times."""


EXACT = (Inputs.INTEGER, Inputs.CANCELLATION)
"""Kinds on which honest arithmetic may make no error at all."""
ROUND = (*EXACT, Inputs.TIES)


class Weights(StrEnum):
    """Kinds of weights."""

    OWN = "own"
    """As the constructor draws them."""
    SHAKEN = "shaken"
    """Moved off special values: a fresh BatchNorm or LayerNorm is an identity."""
    INTEGER = "integer"
    """-1, 0, 1."""


def derive(
    kind: Inputs, own: Sequence[Tensor], seed: int, ranges: Sequence[Range | None] = ()
) -> list[Tensor]:
    """Inputs of `kind` in the forms of the task's own.

    `ranges` are the least and largest value of each integer tensor (`ranges_of`).
    """
    if kind is Inputs.OWN:
        return list(own)
    generator = _generator(own, seed)
    if kind is Inputs.EXTREMES:
        return [
            _extreme(tensor, bounds, generator) if bounds else tensor
            for tensor, bounds in zip(own, ranges or [None] * len(own), strict=True)
        ]
    drawn: list[Tensor] = []
    for tensor in own:
        if not tensor.is_floating_point():
            drawn.append(tensor)
            continue
        later = any(other.is_floating_point() for other in own[: len(drawn)])
        what = Inputs.INTEGER if kind is Inputs.CANCELLATION and later else kind
        drawn.append(_drawn(what, tensor, generator))
    return drawn


def ranges_of(draws: Sequence[Sequence[Tensor]]) -> list[Range | None]:
    """For each tensor of several own draws its least and largest value.

    None where it holds no integers, or where these say more than each for itself: sorted ones are
    offsets or segments, ones without duplicates a permutation.
    """
    return [_range_of(tensors) for tensors in zip(*draws, strict=True)]


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


def _range_of(tensors: Sequence[Tensor]) -> Range | None:
    import torch

    for tensor in tensors:
        if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool:
            return None
        if tensor.numel() < 2 or tensor.unique().numel() == tensor.numel():
            return None
        if tensor.dim() and bool((tensor.diff(dim=-1) >= 0).all()):
            return None
    low, high = (min(int(t.min()) for t in tensors), max(int(t.max()) for t in tensors))
    return low, high


def _extreme(tensor: Tensor, bounds: Range, generator: Generator) -> Tensor:
    """A third each of the least, the largest and what was there."""
    import torch

    third = torch.rand(tuple(tensor.shape), generator=generator, device=tensor.device)
    low, high = (torch.full_like(tensor, bound) for bound in bounds)
    return torch.where(third < 1 / 3, low, torch.where(third < 2 / 3, high, tensor))


def _balanced(tensor: Tensor, generator: Generator) -> Tensor:
    """+1 and -1 in equal numbers along the last axis, in an order drawn from the generator."""
    import torch

    width = tensor.shape[-1] if tensor.dim() else 1
    order = torch.randperm(width, generator=generator, device=tensor.device)
    return (order % 2 * 2 - 1).to(tensor.dtype)


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
        case Inputs.CANCELLATION:
            drawn = _balanced(normal, generator) * (1 + (normal * 3).round().clamp(-8, 8) / 2**16)
        case Inputs.TIES:
            drawn = (normal * 2).round().clamp(-4, 4) / 2
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
