"""Find the operators by which a reference tests its inputs for NaN or infinities.

A test counts only if its argument is an input, moved or changed element by element. A sum, a
softmax or a product spreads one NaN over a whole row, so that the reference can no longer tell
which number was NaN. `nan_to_num(softmax(x))`, for example, fills rows whose elements are all
masked, and says nothing about NaN in `x`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

NAN_AWARE = frozenset(
    ("isnan", "isinf", "isfinite", "nan_to_num", "nansum", "nanmean", "nanmedian", "fmax", "fmin")
)
"""Operators that handle NaN or infinities in their argument specially."""
INFINITY_AWARE = frozenset(("isinf", "isfinite"))
EQUALITY = frozenset(("eq", "ne"))
MOVING = frozenset(
    ("clone", "_to_copy", "cat", "stack", "constant_pad_nd", "flip", "roll", "index", "gather")
)
"""Operators that copy elements unchanged, but are neither views nor pointwise."""


class NanTests:
    """Observer of one run of the reference; its `see` must be called after each operator."""

    def __init__(self) -> None:
        self.nan = False
        """True if the reference tests an element of its inputs for NaN."""
        self.infinity = False
        """True if the reference also tests an element of its inputs for infinities."""
        self._spread: dict[int, Any] = {}
        """Results, by id, in which one NaN may have spread to other elements.

        They are referenced here so that their ids are not reused.
        """

    def see(self, function: Any, args: Sequence[Any], result: Any) -> None:
        """Update the findings with one operator, its arguments and its result."""
        name = function.overloadpacket.__name__.rstrip("_")
        spread = any(id(tensor) in self._spread for tensor in _tensors(args))
        itself = name in EQUALITY and len(args) > 1 and args[0] is args[1]
        if not spread:
            self.nan |= itself or name in NAN_AWARE
            # Without explicit values for infinities, nan_to_num is meant for NaN only.
            replaces = name == "nan_to_num" and any(value is not None for value in args[2:])
            # torch dispatches isfinite(x) as abs(x) != inf and x == x.
            compared = name in EQUALITY and len(args) > 1 and _is_infinite(args[1])
            self.infinity |= name in INFINITY_AWARE or replaces or compared
        if spread or not (_is_pointwise(function) or function.is_view or name in MOVING):
            self._spread |= {id(tensor): tensor for tensor in _tensors([result])}


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


def _is_pointwise(function: Any) -> bool:
    import torch

    return torch.Tag.pointwise in function.tags


def _tensors(values: Sequence[Any]) -> list[Any]:
    """Return the tensors among arguments, those in lists included."""
    import torch

    found: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += _tensors(value)
    return found
