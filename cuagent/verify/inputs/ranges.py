"""Ranges of the values in a task's input tensors, estimated from several results of get_inputs.

Not covered: bounds that no draw shows, for example of one tensor by another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Range = tuple[int, int]
Ends = tuple[float, ...]

NEAR_THE_END = 8
"""Largest distance of an index tensor's extreme from the end of its table that chance explains.

The unit is the mean distance between the drawn numbers. In one of 3,000 cases no number is nearer.
"""


def ranges_of(several: Sequence[Sequence[Tensor]], sizes: Sequence[int] = ()) -> list[Range | None]:
    """Return the (least, largest) value of each integer tensor; `several` are draws of get_inputs.

    `sizes` are the lengths of the tables that each tensor indexes, 0 for none. If the values come
    as near to an end of the table as chance explains, the range extends to that end.

    The result is None for other tensors and for integers that cannot be drawn independently: sorted
    ones are offsets or segments, ones without duplicates a permutation.
    """
    tables = sizes or [0] * len(several[0])
    both = zip(zip(*several, strict=True), tables, strict=True)
    return [_range_of(tensors, size) for tensors, size in both]


def ends_of(several: Sequence[Sequence[Tensor]]) -> list[Ends]:
    """Return the ends of the domain of each floating tensor; `several` are draws of get_inputs.

    (0,) if no number is negative, (-1, 1) if all are from -1 to 1, else ().
    """
    return [_ends_of(tensors) for tensors in zip(*several, strict=True)]


def _range_of(tensors: Sequence[Tensor], size: int) -> Range | None:
    import torch

    first = tensors[0]
    if first.is_floating_point() or first.is_complex() or first.dtype is torch.bool:
        return None
    # A few numbers may be distinct or sorted by chance, but not in every draw.
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
    """Return True if the elements never fall along the last axis (the flattened tensor if its
    length is 1).
    """
    lines = tensor if tensor.dim() and tensor.shape[-1] > 1 else tensor.reshape(-1)
    return bool((lines.diff(dim=-1) >= 0).all())


def _ends_of(tensors: Sequence[Tensor]) -> Ends:
    if not tensors[0].is_floating_point() or not tensors[0].numel():
        return ()
    low, high = (min(float(x.min()) for x in tensors), max(float(x.max()) for x in tensors))
    if low >= 0:
        return (0.0,)
    return (-1.0, 1.0) if low >= -1 and high <= 1 else ()
