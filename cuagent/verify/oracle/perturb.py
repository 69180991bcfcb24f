"""Small changes to the oracle's inputs and weights, by which it learns how firm its answers are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cuagent.verify.tensors import BLOCK, UNIT, is_inexact, wide_dtype

if TYPE_CHECKING:
    from torch import Generator, Tensor

TINY = 1e-30
LARGEST_WHOLE = 2.0**24
"""Up to which fp32 holds whole numbers."""


def perturbed(
    tensor: Tensor, generator: Generator, reach: float = UNIT, *, wide: bool = False
) -> Tensor:
    """Every element times 1 + reach N(0,1), in fp64 where `wide`; integers and booleans as they
    are."""
    import torch

    if not is_inexact(tensor):
        return tensor
    kind = wide_dtype(tensor) if wide else tensor.dtype
    moved = tensor.to(kind, copy=True, memory_format=torch.contiguous_format)
    perturb(moved, generator, reach)
    return moved


def perturb(tensor: Tensor, generator: Generator, reach: float, *, steady: bool = False) -> None:
    """The same in place, for what is no integer; where `steady`, whole numbers stay as they are."""
    import torch

    if not tensor.is_contiguous():
        moved = tensor.contiguous()
        perturb(moved, generator, reach, steady=steady)
        tensor.copy_(moved)
        return
    for part in tensor.view(-1).split(BLOCK[tensor.device.type]):
        noise = torch.randn(
            part.numel(), generator=generator, device=tensor.device, dtype=torch.float32
        )
        # in place: at some ten million elements new memory takes longer than the arithmetic
        factor = noise.double().mul_(reach).add_(1).to(tensor.dtype)
        if steady and not part.is_complex():
            factor.masked_fill_((part == part.round()) & (part.abs() <= LARGEST_WHOLE), 1)
        part.mul_(factor)


def within(near: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """What was perturbed, but no further than the least and the largest of each tensor before:
    probabilities stay below one."""
    return [
        moved.clamp(tensor.min().to(moved.dtype), tensor.max().to(moved.dtype))
        if tensor.is_floating_point() and tensor.numel()
        else moved
        for moved, tensor in zip(near, inputs, strict=True)
    ]


def opposites(
    tensors: Sequence[Tensor], generator: Generator, reach: float, *, wide: bool = False
) -> Iterator[list[Tensor]]:
    """A perturbation of all and its opposite, so that a tie falls one way and the other."""
    state = generator.get_state()
    for sign in (1, -1):
        generator.set_state(state)
        yield [perturbed(tensor, generator, sign * reach, wide=wide) for tensor in tensors]


def tilted(tensor: Tensor, reach: float) -> Tensor:
    """Every element moved by its size times a ramp from -reach to reach: of equals the last wins.

    With a negative reach it is the first.
    """
    import torch

    if not tensor.is_floating_point():
        return tensor
    ramp = torch.linspace(-reach, reach, tensor.numel(), device=tensor.device, dtype=torch.float64)
    return tensor + tensor.abs() * ramp.view(tensor.shape).to(tensor.dtype)


def untied(tensor: Tensor) -> Tensor:
    """Zeros, which no factor moves, become tiny numbers."""
    return tensor.masked_fill(tensor == 0, TINY) if is_inexact(tensor) else tensor


def apart(these: Tensor, those: Tensor) -> Tensor:
    """int64: how far integers or truth values lie apart, as far as their own type can say it."""
    import torch

    dtype = these.dtype
    most = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    return (these.long() - those.long()).abs().clamp(max=most)
