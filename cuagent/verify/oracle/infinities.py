"""Find the infinities in outputs of the reference."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cuagent.verify.tensors import is_inexact

if TYPE_CHECKING:
    from torch import Tensor


def infinities_of(tensors: list[Tensor]) -> frozenset[float] | None:
    """Return the signs of the infinities in `tensors`.

    None if a tensor contains NaN, or if a complex number is not finite.
    """
    found: set[float] = set()
    for tensor in filter(is_inexact, tensors):
        if is_finite(tensor):
            continue
        if tensor.is_complex() or bool(tensor.isnan().any()):
            return None
        found |= {sign for sign in (math.inf, -math.inf) if bool((tensor == sign).any())}
    return frozenset(found)


def equal_infinities(first: Tensor, second: Tensor) -> bool:
    """Return True if both tensors have infinities of the same sign at the same positions."""
    import torch

    if not is_inexact(first) or first.is_complex():
        return True
    where = ~second.isfinite()
    same_places = torch.equal(~first.isfinite(), where)
    return same_places and torch.equal(first[where].sign().float(), second[where].sign().float())


def is_finite(tensor: Tensor) -> bool:
    """Return True if all elements are finite.

    The sum is tested first, in a sixteenth of the time: a NaN or Inf makes it non-finite.
    """
    return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())
