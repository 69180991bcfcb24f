"""Tensors with guard bands, which show reads and writes outside of a tensor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

BAND = 256
"""Number of bytes before and behind a tensor; a multiple of every alignment that kernels need."""
PATTERN = 0xFF
"""Byte of the bands and of new tensors: NaN in every type of float, -1 in integers."""


class Guards:
    """Allocates tensors between bands of a fixed pattern, and tells if a band was overwritten."""

    def __init__(self) -> None:
        self._buffers: list[tuple[torch.Tensor, int]] = []

    def empty(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a new contiguous tensor, filled with the pattern."""
        item = torch.empty((), dtype=dtype).element_size()
        size = item * int(torch.Size(shape).numel())
        padded = -(-size // 16) * 16
        buffer = torch.full((2 * BAND + padded,), PATTERN, dtype=torch.uint8)
        self._buffers.append((buffer, size))
        return buffer[BAND : BAND + size].view(dtype).view(shape)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy between bands; a tensor that is not contiguous is returned as it is."""
        if not tensor.is_contiguous() or tensor.numel() == 0:
            return tensor
        return self.empty(tensor.shape, tensor.dtype).copy_(tensor)

    def are_intact(self) -> bool:
        """Return True if no band was overwritten."""
        parts = [(b[:BAND], b[BAND + size :]) for b, size in self._buffers]
        return all(bool((part == PATTERN).all()) for pair in parts for part in pair)

    @contextmanager
    def new_tensors(self) -> Iterator[None]:
        """Make `torch.empty` and `torch.empty_like` allocate here in this context."""
        kept = torch.empty, torch.empty_like

        def empty(*sizes: Any, dtype: Any = None, device: Any = None, **others: Any) -> Any:
            shape = sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
            if others or torch.Size(shape).numel() == 0:
                return kept[0](shape, dtype=dtype, device=device, **others)
            torch.empty = kept[0]
            try:
                return self.empty(shape, dtype or torch.get_default_dtype())
            finally:
                torch.empty = empty

        def empty_like(tensor: torch.Tensor, **others: Any) -> torch.Tensor:
            if others or not tensor.is_contiguous() or tensor.numel() == 0:
                return kept[1](tensor, **others)
            return empty(tensor.shape, dtype=tensor.dtype)

        torch.empty, torch.empty_like = empty, empty_like  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.empty, torch.empty_like = kept
