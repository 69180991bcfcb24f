"""Find mask fills, such as -1e9 for hidden elements, by their distance in magnitude from the
others.

A line is the elements among which an operator chooses once. The distance at which numbers count as
equal is relative to the magnitude of their line. A mask fill must not widen it for the other
numbers: within roundoff of 1e9 all of them would be equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuagent.verify.trace.mask_fills import LEAST

if TYPE_CHECKING:
    from torch import Tensor

GAP = 1e3
"""Least factor between the magnitude of a mask fill and the next smaller one in its line."""


def least_fill_sizes(lines: Tensor) -> Tensor:
    """Return the smallest magnitude of a mask fill in each line; inf without a mask fill.

    `lines` is [lines, places]; the result is [lines].
    """
    import torch

    none = lines.new_full(lines.shape[:1], torch.inf)
    sizes = lines.abs().nan_to_num(0.0, torch.inf)
    if lines.shape[1] < 2 or not bool((sizes >= LEAST).any()):
        return none
    ordered = sizes.sort(-1).values
    below, above = ordered[:, :-1], ordered[:, 1:]
    fills = (above >= LEAST) & (above > GAP * below)
    return torch.where(fills, above, torch.inf).amin(-1)
