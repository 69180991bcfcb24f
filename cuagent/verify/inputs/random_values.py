"""Draw random tensors, each from a seeded generator.

A row contains all elements along the last axis. A block contains all rows with the same index along
the first axis longer than 1. A task may normalise over more than a row (a group of channels, a
sample), so in half of the blocks all rows have the same value (`row_values`), and in the other half
each row has another one. Values are assigned in a random order, not drawn independently, so each
occurs if there are enough rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

STRETCH = 1 << 22
"""Number of elements processed at a time, to limit the memory of intermediate results."""


def seeded(tensors: Sequence[Tensor], seed: int) -> Generator:
    """Return a generator on the device of the tensors; on the CPU if there are none."""
    import torch

    device = tensors[0].device if tensors else torch.device("cpu")
    return torch.Generator(device=device).manual_seed(seed)


def randn(tensor: Tensor, generator: Generator) -> Tensor:
    """Return standard normal numbers with the shape of `tensor`; fp64 if it is fp64, else fp32."""
    import torch

    dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    shape = tuple(tensor.shape)
    return torch.randn(shape, generator=generator, dtype=dtype, device=tensor.device)


def uniform(normal: Tensor) -> Tensor:
    """Map standard normal numbers in place to uniform numbers in [0, 1), and return the tensor."""
    import torch

    for part in normal.view(-1).split(STRETCH):
        part.copy_(torch.special.ndtr(part))
    return normal


def permutation(count: int, tensor: Tensor, generator: Generator) -> Tensor:
    import torch

    return torch.randperm(count, generator=generator, device=tensor.device)


def first_of_rows(tensor: Tensor) -> Tensor:
    return tensor[..., :1] if tensor.dim() else tensor


def row_values(values: Sequence[float], tensor: Tensor, generator: Generator) -> Tensor:
    """Return a random one of `values` for each row of `tensor`, as [..., 1].

    In half of the leading blocks all rows get the same value. A single row gets the first value.
    """
    import torch

    rows = first_of_rows(tensor)
    ranks = permutation(rows.numel(), tensor, generator).view(rows.shape)
    blocks = next((axis for axis, size in enumerate(rows.shape) if size > 1), 0)
    if any(size > 1 for size in rows.shape[blocks + 1 :]):
        shape = [size if axis == blocks else 1 for axis, size in enumerate(rows.shape)]
        order = permutation(rows.shape[blocks], tensor, generator).view(shape)
        ranks = torch.where(order % 2 == 0, order // 2, ranks)
    table = torch.tensor(list(values), device=tensor.device, dtype=torch.float32)
    return table[ranks % len(values)]


def balanced(tensor: Tensor, generator: Generator) -> Tensor:
    """Return +1 and -1 in equal numbers and random order, with the length of the last axis."""
    width = tensor.shape[-1] if tensor.dim() else 1
    return (permutation(width, tensor, generator) % 2 * 2 - 1).to(tensor.dtype)


def shuffled_values(values: Sequence[float], tensor: Tensor, generator: Generator) -> Tensor:
    """Return a tensor with the shape of `tensor` that contains each of `values` equally often.

    The order is random. A single element gets the first value.
    """
    import torch

    table = torch.tensor(list(values), device=tensor.device)
    return table[permutation(tensor.numel(), tensor, generator) % len(values)].view(tensor.shape)


def with_values(
    tensor: Tensor, values: Sequence[float], generator: Generator, share: float = 1 / 4
) -> Tensor:
    """Return `tensor` with a random share of its elements replaced by `values`."""
    import torch

    these = shuffled_values(values, tensor, generator).to(tensor.dtype)
    chosen = torch.rand(tuple(tensor.shape), generator=generator, device=tensor.device)
    return torch.where(chosen < share, these, tensor)
