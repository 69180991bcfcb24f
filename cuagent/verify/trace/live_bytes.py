"""Measure the peak memory of the tensors that a run creates.

The size of each operator's result counts from its creation until it is freed. Not covered: memory
that an operator uses inside, such as the workspace of a convolution.
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
    """Bytes of the operators' results that are alive, and the peak of that number."""

    def __init__(self) -> None:
        self.peak = 0
        self._now = 0
        self._tensors_at: Counter[int] = Counter()
        """Number of living tensors that share a storage; the key is the storage's address."""

    def measure(self, run: Callable[[], Any]) -> Any:
        """Call `run`, track its operators' results, and return its result."""
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
