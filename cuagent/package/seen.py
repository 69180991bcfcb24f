"""Recognize a call whose tensors have the same properties as those of an earlier, checked call.

Travels with an exported or applied kernel, next to `replacement.py`. The comparison is torch's own
guard of compiled code. It compares class, dispatch keys (device type, layout, conjugation,
negation, autocast, transforms), dtype, device, sizes, strides and requires_grad of all tensors in
0.2 us; the checks of `forms.py` take 0.7 us for each tensor. It distinguishes more properties than
those checks, so a call that it does not recognize is checked in full. Alignment is compared here.

Not covered: calls with other arguments than tensors; these are always checked in full.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .forms import ALIGNMENT, PLAIN

LARGEST = 4
"""Largest number of guards for each key; calls may differ in inference mode or gradients. Further
calls are always checked in full."""
MASK = ALIGNMENT - 1
"""Bits of an address that are 0 for an aligned tensor."""
_pointer = Tensor.data_ptr


class Seen:
    """A cache from recognized calls to the value that `add` stored for them."""

    def __init__(self, *, by_shape: bool = False) -> None:
        """Group the guards by the shape of the first tensor if `by_shape`, for a faster search."""
        self._by_shape = by_shape
        self._found: dict[Any, list[tuple[int, Callable[..., bool], Any]]] = {}
        """(number of tensors, guard, stored value) for each key."""

    def forget(self) -> None:
        """Forget all calls; needed when the module that they were checked for has changed."""
        self._found = {}

    def find(self, args: tuple[Any, ...]) -> Any:
        """Return the value that was added for an equal call; None if there is none."""
        if not args:
            return None
        count = len(args)
        key: Any = args[0].shape if self._by_shape and args[0].__class__ in PLAIN else count
        for known, check, runs in self._found.get(key, ()):
            if known == count and check(*args):  # torch's guard raises for another number
                for tensor in args:
                    if _pointer(tensor) & MASK:
                        return None
                return runs
        return None

    def find_of_any_alignment(self, args: tuple[Any, ...]) -> Any:
        """Return the value that was added for an equal call; the caller compares the alignment.

        For guards that are not grouped by shape.
        """
        for _, check, runs in self._found.get(len(args), ()):
            if check(*args):
                return runs
        return None

    def add(self, args: tuple[Any, ...], runs: Any) -> None:
        """Store `runs` for a call that was checked in full; do nothing if torch cannot recognize
        it."""
        if _guards is None or not args or any(value.__class__ not in PLAIN for value in args):
            return
        key: Any = args[0].shape if self._by_shape else len(args)
        kept = self._found.setdefault(key, [])
        if len(kept) >= LARGEST:
            return
        try:
            guards = _guards(
                *args,
                dynamic_dims_sizes=[list(value.shape) for value in args],
                dynamic_dims_strides=[list(value.stride()) for value in args],
            )
            if guards.check(*args):  # False if one tensor was given twice
                kept.append((len(args), guards.check, runs))
        except (RuntimeError, TypeError, ValueError):  # another version of torch
            return


_guards: Any = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)
