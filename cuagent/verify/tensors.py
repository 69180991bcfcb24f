"""Tensor operations that inputs, traces, rules and the oracle share.

Large tensors are processed in blocks, so that an output of several GB needs no second copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, dtype

UNIT = 2.0**-24
"""Unit roundoff u of fp32; inputs and weights of the oracle are perturbed by this relative size."""
FAILURES = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
"""Exceptions that a module may raise on altered inputs, for example on probabilities above one."""
BLOCK = {"cpu": 1 << 15, "cuda": 1 << 24}
"""Number of elements processed at a time, by device type. On the CPU a block fits in the caches,
and torch uses one thread."""


def is_inexact(tensor: Tensor) -> bool:
    """Return True if the tensor is floating or complex, so that its elements carry roundoff."""
    return tensor.is_floating_point() or tensor.is_complex()


def to_fp64(tensor: Tensor) -> Tensor:
    """Return the tensor in fp64 or complex128; integers and booleans are returned unchanged."""
    return tensor.to(wide_dtype(tensor)) if is_inexact(tensor) else tensor


def wide_dtype(tensor: Tensor) -> dtype:
    """Return complex128 for a complex tensor, fp64 for any other."""
    import torch

    return torch.complex128 if tensor.is_complex() else torch.float64


def as_real(tensor: Tensor) -> Tensor:
    """View complex numbers as pairs of real numbers; return other tensors unchanged."""
    import torch

    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def in_blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield blocks of at most BLOCK elements: the same range of each flattened tensor.

    Complex numbers are viewed as pairs of real numbers. Blocks are on the first tensor's device;
    those of tensors on another device are copies.
    """
    flat = [as_real(tensor).reshape(-1) for tensor in tensors]
    device = flat[0].device
    size = BLOCK[device.type]
    for begin in range(0, flat[0].numel(), size):
        yield tuple(tensor[begin : begin + size].to(device) for tensor in flat)


def square_sum(tensor: Tensor) -> Tensor:
    """Return the sum of the squares of a real tensor's elements in fp64, without a copy on a
    GPU."""
    import torch

    if tensor.is_cuda:
        return torch.linalg.vector_norm(tensor, dtype=torch.float64).square()
    return tensor.double().square().sum()


def largest_size(tensor: Tensor) -> Tensor:
    """Return the largest absolute value of a real tensor that is not empty; NaN if it contains
    NaN. Makes no copy on a GPU."""
    import torch

    return torch.linalg.vector_norm(tensor, math.inf) if tensor.is_cuda else tensor.abs().max()


def relative_error(outputs: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Return the largest norm(x - r) / norm(r) over pairs (output x, right answer r).

    Elements whose right answer is not finite are skipped.
    """
    errors = [0.0]
    for pair in zip(outputs, right, strict=True):
        if is_inexact(pair[0]) and pair[0].numel():
            apart = size = 0.0
            for x, r in in_blocks(*pair):
                difference = (x.double() - r).where(r.isfinite(), 0.0)
                apart += float(difference.nan_to_num(math.inf).square().sum())
                size += float(r.nan_to_num(0.0, 0.0, 0.0).square().sum())
            errors.append(math.sqrt(apart) / max(math.sqrt(size), 1e-300))
    return max(errors)
