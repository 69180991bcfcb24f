"""Draw random values in the shape of a tensor, each from a seeded generator.

A row is all elements along the last axis. A block is all rows with the same index along the first
axis longer than 1. A task may normalise over more than a row (a group of channels, a sample), so in
half of the blocks all rows have the same value (`row_values`), and in the other half each row has
its own. Values are assigned in a random order, not drawn independently, so each occurs if there are
enough rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor

STRETCH = 1 << 22
"""Elements processed at a time where intermediate results need memory."""


def seeded(tensors: Sequence[Tensor], seed: int) -> Generator:
    """Return a generator on the device of the tensors; on the CPU if there are none."""
    import torch

    device = tensors[0].device if tensors else torch.device("cpu")
    return torch.Generator(device=device).manual_seed(seed)


def randn(tensor: Tensor, generator: Generator) -> Tensor:
    """Return standard normal numbers of the tensor's shape, in fp32 or, for fp64, in fp64."""
    import torch

    dtype = torch.float64 if tensor.dtype is torch.float64 else torch.float32
    shape = tuple(tensor.shape)
    return torch.randn(shape, generator=generator, dtype=dtype, device=tensor.device)


def uniform(normal: Tensor) -> Tensor:
    """Replace normal numbers in place by numbers uniform in [0, 1), and return the tensor."""
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
    """Return one of `values` for every row, as [..., 1]; the first if there is one row.

    In half of the leading blocks all rows get the same value.
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
    """Return as many +1 as -1 along the last axis, in random order."""
    width = tensor.shape[-1] if tensor.dim() else 1
    return (permutation(width, tensor, generator) % 2 * 2 - 1).to(tensor.dtype)


def shuffled_values(values: Sequence[float], tensor: Tensor, generator: Generator) -> Tensor:
    """Return a tensor of the shape of `tensor` with each of `values` equally often, in random
    order; the first value for a single element."""
    import torch

    table = torch.tensor(list(values), device=tensor.device)
    return table[permutation(tensor.numel(), tensor, generator) % len(values)].view(tensor.shape)


def with_values(
    tensor: Tensor, values: Sequence[float], generator: Generator, share: float = 1 / 4
) -> Tensor:
    """Replace a share of the elements by `values`."""
    import torch

    these = shuffled_values(values, tensor, generator).to(tensor.dtype)
    chosen = torch.rand(tuple(tensor.shape), generator=generator, device=tensor.device)
    return torch.where(chosen < share, these, tensor)
