"""Measure how many bytes of results a run holds at the same time.

It counts the memory of the tensors that operators return, from their creation until they are freed.
Not covered: memory that an operator uses inside, such as the workspace of a convolution.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cuagent.verify.trace.hooks import intercept_operators

if TYPE_CHECKING:
    from torch import Tensor


class LiveBytes:
    """Bytes of the results that are alive, and their peak."""

    def __init__(self) -> None:
        self.peak = 0
        self._now = 0
        self._tensors_at: Counter[int] = Counter()
        """Number of living results by the storage that has their memory."""

    def measure(self, run: Callable[[], Any]) -> Any:
        """Return the result of `run` and measure its operators."""
        import torch

        def call(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
            result = function(*args, **kwargs)
            if not function.is_view and not function._schema.is_mutable:
                for tensor in result if isinstance(result, tuple | list) else (result,):
                    if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                        self._add(tensor)
            return result

        with intercept_operators(call):
            return run()

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        # The storage's address, unlike that of its memory, exists for fake tensors too.
        place, size = storage._cdata, storage.nbytes()
        self._tensors_at[place] += 1
        if self._tensors_at[place] == 1:
            self._now += size
            self.peak = max(self.peak, self._now)
        weakref.finalize(tensor, self._drop, place, size)

    def _drop(self, place: int, size: int) -> None:
        self._tensors_at[place] -= 1
        if not self._tensors_at[place]:
            self._now -= size
