"""Between what lie the numbers of a task's own inputs, as several own draws tell.

Not covered: what bounds numbers besides, which no draw shows (one tensor by another).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Range = tuple[int, int]
Ends = tuple[float, ...]

NEAR_THE_END = 8
"""Times the mean distance of so many numbers: none of them is nearer in one of 3,000 cases."""


def ranges_of(several: Sequence[Sequence[Tensor]], sizes: Sequence[int] = ()) -> list[Range | None]:
    """For each tensor of several own draws its least and largest value.

    `sizes` are those of the tables that each is known to index, 0 for none: where own numbers come
    as near to an end of one as so many of them would by chance, they go to that end.

    None where it holds no integers, or where these say more than each for itself: sorted ones are
    offsets or segments, ones without duplicates a permutation.
    """
    tables = sizes or [0] * len(several[0])
    both = zip(zip(*several, strict=True), tables, strict=True)
    return [_range_of(tensors, size) for tensors, size in both]


def ends_of(several: Sequence[Sequence[Tensor]]) -> list[Ends]:
    """For each tensor of several own draws the ends of a domain that its numbers keep to.

    None but where it holds floating numbers, all of them from -1 to 1 or none below 0.
    """
    return [_ends_of(tensors) for tensors in zip(*several, strict=True)]


def _range_of(tensors: Sequence[Tensor], size: int) -> Range | None:
    import torch

    first = tensors[0]
    if first.is_floating_point() or first.is_complex() or first.dtype is torch.bool:
        return None
    # By chance a few numbers are all different, or sorted, but not in every draw.
    if first.numel() < 2 or all(x.unique().numel() == x.numel() for x in tensors):
        return None
    if all(map(_is_sorted, tensors)):
        return None
    low, high = (min(int(t.min()) for t in tensors), max(int(t.max()) for t in tensors))
    if size:
        near = NEAR_THE_END * (high - low + 1) / (len(tensors) * first.numel())
        low = 0 if 0 <= low <= near else low
        high = size - 1 if 0 <= size - 1 - high <= near else high
    return low, high


def _is_sorted(tensor: Tensor) -> bool:
    """Along its last axis, or as a whole where that holds one number."""
    lines = tensor if tensor.dim() and tensor.shape[-1] > 1 else tensor.reshape(-1)
    return bool((lines.diff(dim=-1) >= 0).all())


def _ends_of(tensors: Sequence[Tensor]) -> Ends:
    if not tensors[0].is_floating_point() or not tensors[0].numel():
        return ()
    low, high = (min(float(x.min()) for x in tensors), max(float(x.max()) for x in tensors))
    if low >= 0:
        return (0.0,)
    return (-1.0, 1.0) if low >= -1 and high <= 1 else ()
