"""Compute fp64 depthwise convolutions on a CPU as a sum of shifted inputs.

torch computes fp64 convolutions with groups one group at a time, in one thread. The sum takes two
fifths of that time with two threads, on the 16 depthwise layers of EfficientNet B0.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = (
    "depthwise(Tensor input, Tensor weight, Tensor? bias, int[] stride, int[] padding,"
    " int[] dilation) -> Tensor"
)
_libraries: list[Any] = []
"""The registered library: an operator ends with the object that defined it."""


def is_depthwise(args: Sequence[Any]) -> bool:
    """Return True for the arguments of an aten.convolution with one output channel for each input
    channel, not transposed, on a CPU."""
    given, weight = args[0], args[1]
    transposed, groups = args[6], args[8]
    channels = given.shape[1] if given.dim() == weight.dim() else 0
    return (
        given.device.type == "cpu"
        and not transposed
        and 1 < groups == channels == weight.shape[0]
        and given.numel() > 0
    )


def depthwise_convolution(args: Sequence[Any]) -> Tensor:
    """Return the result of an aten.convolution for which `is_depthwise` is true.

    It is one operator for contexts that intercept operators, as the convolution is.
    """
    given, weight, bias = args[:3]
    sizes = (_each(value, weight.dim() - 2) for value in args[3:6])
    result: Tensor = _operator()(given, weight, bias, *sizes)
    return result


@functools.cache
def _operator() -> Callable[..., Tensor]:
    import torch

    library = torch.library.Library("cuagent_oracle", "DEF")
    library.define(SCHEMA)
    library.impl("depthwise", _sum_of_shifts, "CPU")
    _libraries.append(library)
    operator: Callable[..., Tensor] = torch.ops.cuagent_oracle.depthwise
    return operator


def _sum_of_shifts(
    given: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Tensor:
    """Return the depthwise convolution as a sum over the positions of the kernel.

    Shapes: input (N, C, *positions), weight (C, 1, *kernel), bias (C,).
    """
    import torch

    kernel = weight.shape[2:]
    padded = torch.nn.functional.pad(given, [n for p in reversed(padding) for n in (p, p)])
    # Offset of the last position of the kernel, per dimension.
    last = [
        (n - d * (k - 1) - 1) // s * s
        for n, k, s, d in zip(padded.shape[2:], kernel, stride, dilation, strict=True)
    ]
    columns = (-1, *(1,) * len(kernel))
    positions = (n // s + 1 for n, s in zip(last, stride, strict=True))
    total = padded.new_zeros(*given.shape[:2], *positions)
    if bias is not None:
        total += bias.view(columns)
    factors = weight.flatten(1).unbind(1)
    for factor, taps in zip(factors, itertools.product(*map(range, kernel)), strict=True):
        starts = [tap * d for tap, d in zip(taps, dilation, strict=True)]
        window = [slice(a, a + n + 1, s) for a, n, s in zip(starts, last, stride, strict=True)]
        total.addcmul_(padded[:, :, *window], factor.view(columns))
    return total


def _each(value: Sequence[int], dimensions: int) -> list[int]:
    """Return one number for each dimension; torch may give one for all."""
    return list(value) * dimensions if len(value) == 1 else list(value)
