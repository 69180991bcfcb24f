"""Split equally shaped tensors into pieces for comparisons.

A comparison creates several temporary tensors of the compared size. On a GPU with large outputs
they exceed the memory that the outputs need. Most comparisons of a check also end at the first
difference, which the first small piece usually shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

FIRST = 1 << 20
"""Approximate number of elements of the first piece."""
LATER = 1 << 26
"""Approximate number of elements of each later piece."""


def pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield views that together cover `tensors`, which have equal shapes, in order of their longest
    dimension. Tensors with at most `FIRST` elements are one piece."""
    whole = tensors[0]
    if whole.numel() <= FIRST:
        yield tensors
        return
    dimension = max(range(whole.dim()), key=lambda d: whole.shape[d])
    length = whole.shape[dimension]
    row = whole.numel() // length
    start = 0
    while start < length:
        size = min(length - start, max(1, (LATER if start else FIRST) // row))
        yield tuple(tensor.narrow(dimension, start, size) for tensor in tensors)
        start += size
