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

UNWRITTEN = ("empty", "empty_like", "empty_strided")


class Guards:
    """Allocates tensors between bands of a fixed pattern, and tells if a band was overwritten."""

    def __init__(self) -> None:
        self._buffers: list[tuple[torch.Tensor, int]] = []

    def empty(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a new contiguous tensor, filled with the pattern."""
        like = torch.empty(shape, dtype=dtype, device="meta")
        return self.strided(like.shape, like.stride(), dtype)

    def strided(self, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        """Return a new tensor with these strides, filled with the pattern."""
        item = torch.empty((), dtype=dtype, device="meta").element_size()
        last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        size = item * (last + 1)
        padded = -(-size // 16) * 16
        buffer = torch.full((2 * BAND + padded,), PATTERN, dtype=torch.uint8)
        self._buffers.append((buffer, size))
        # A candidate takes slices of new memory by `as_strided`, from the first byte of a storage.
        inside = torch.from_numpy(buffer.numpy()[BAND:])
        return inside.view(dtype).as_strided(shape, strides)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy between bands, with the same strides; an empty tensor, or one whose
        elements overlap, is returned as it is."""
        if tensor.numel() == 0 or torch._debug_has_internal_overlap(tensor) != 0:
            return tensor
        return self.strided(tensor.shape, tensor.stride(), tensor.dtype).copy_(tensor)

    def are_intact(self) -> bool:
        """Return True if no band was overwritten."""
        parts = [(b[:BAND], b[BAND + size :]) for b, size in self._buffers]
        return all(bool((part == PATTERN).all()) for pair in parts for part in pair)

    @contextmanager
    def new_tensors(self) -> Iterator[None]:
        """Make functions of torch that leave a new tensor unwritten allocate here in this
        context."""
        kept = {name: getattr(torch, name) for name in UNWRITTEN}

        def guarded(name: str) -> Any:
            def function(*sizes: Any, **others: Any) -> torch.Tensor:
                made = kept[name](*sizes, **others)
                if made.numel() == 0 or made.device.type != "cpu":
                    return made
                for known in UNWRITTEN:  # `strided` must not be called in itself.
                    setattr(torch, known, kept[known])
                try:
                    return self.strided(made.shape, made.stride(), made.dtype)
                finally:
                    replace()

            return function

        def replace() -> None:
            for name in UNWRITTEN:
                setattr(torch, name, guarded(name))

        replace()
        try:
            yield
        finally:
            for name in UNWRITTEN:
                setattr(torch, name, kept[name])
