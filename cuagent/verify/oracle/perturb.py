"""Perturb the oracle's inputs and weights slightly, to measure how much roundoff changes its
answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cuagent.verify.tensors import BLOCK, UNIT, is_inexact, wide_dtype

if TYPE_CHECKING:
    from torch import Generator, Tensor

TINY = 1e-30
"""Number that replaces zeros, so that a relative perturbation changes them."""
LARGEST_EXACT_INTEGER = 2.0**24
"""Largest number up to which fp32 represents all integers exactly."""


def perturbed(
    tensor: Tensor, generator: Generator, scale: float = UNIT, *, wide: bool = False
) -> Tensor:
    """Return the tensor with each element multiplied by 1 + scale N(0,1), in fp64 if `wide`.

    Integers and booleans do not change.
    """
    import torch

    if not is_inexact(tensor):
        return tensor
    kind = wide_dtype(tensor) if wide else tensor.dtype
    moved = tensor.to(kind, copy=True, memory_format=torch.contiguous_format)
    perturb(moved, generator, scale)
    return moved


def perturb(tensor: Tensor, generator: Generator, scale: float, *, steady: bool = False) -> None:
    """Multiply each element of a floating or complex tensor in place by 1 + scale N(0, 1).

    With `steady`, elements that are whole numbers do not change.
    """
    if tensor.numel() <= BLOCK[tensor.device.type]:
        _perturb_block(tensor, generator, scale, steady)
        return
    moved = tensor.contiguous()
    for part in moved.view(-1).split(BLOCK[tensor.device.type]):
        _perturb_block(part, generator, scale, steady)
    if moved is not tensor:
        tensor.copy_(moved)


def _perturb_block(part: Tensor, generator: Generator, scale: float, steady: bool) -> None:
    import torch

    noise = torch.randn(part.shape, generator=generator, device=part.device, dtype=torch.float32)
    # in place: at some ten million elements new memory takes longer than the arithmetic
    factor = noise.double().mul_(scale).add_(1).to(part.dtype)
    if steady and not part.is_complex():
        whole = part == part.round()
        if part.is_cuda or whole.any():  # waiting for a GPU takes longer
            factor.masked_fill_(whole.logical_and_(part.abs() <= LARGEST_EXACT_INTEGER), 1)
    part.mul_(factor)


def clamped_to_range(perturbed_inputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Clamp each perturbed input to the least and largest value of the unperturbed one.

    Probabilities, for example, then stay at most one.
    """
    return [
        moved.clamp(tensor.min().to(moved.dtype), tensor.max().to(moved.dtype))
        if tensor.is_floating_point() and tensor.numel()
        else moved
        for moved, tensor in zip(perturbed_inputs, inputs, strict=True)
    ]


def antithetic(
    tensors: Sequence[Tensor], generator: Generator, scale: float, *, wide: bool = False
) -> Iterator[list[Tensor]]:
    """Yield randomly perturbed copies of all tensors, then copies with the opposite perturbation.

    Two equal elements are then ordered once each way.
    """
    state = generator.get_state()
    for sign in (1, -1):
        generator.set_state(state)
        yield [perturbed(tensor, generator, sign * scale, wide=wide) for tensor in tensors]


def tilted(tensor: Tensor, scale: float) -> Tensor:
    """Return tensor + |tensor| * ramp, where the ramp rises from -scale to scale over all elements.

    The last of several equal elements is then the largest; with a negative `scale` the first one.
    """
    import torch

    if not tensor.is_floating_point():
        return tensor
    ramp = torch.linspace(-scale, scale, tensor.numel(), device=tensor.device, dtype=torch.float64)
    return tensor + tensor.abs() * ramp.view(tensor.shape).to(tensor.dtype)


def without_zeros(tensor: Tensor) -> Tensor:
    """Return the tensor with TINY in place of zeros, because a factor does not change a zero."""
    return tensor.masked_fill(tensor == 0, TINY) if is_inexact(tensor) else tensor


def integer_distance(these: Tensor, those: Tensor) -> Tensor:
    """Return |these - those| of integer or boolean tensors, as int64.

    The distance is clamped to the largest value of their dtype.
    """
    import torch

    dtype = these.dtype
    largest = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    return (these.long() - those.long()).abs().clamp(max=largest)
