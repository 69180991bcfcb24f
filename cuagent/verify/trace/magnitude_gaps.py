"""Find mask fills, such as -1e9 for masked elements, by the gap to the other magnitudes.

A line contains the elements among which an operator chooses one. Two numbers of a line count as
equal if they differ by less than roundoff of the line's largest magnitude. A mask fill must not be
that magnitude: within roundoff of 1e9 all other numbers would be equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuagent.verify.trace.mask_fills import LEAST

if TYPE_CHECKING:
    from torch import Tensor

GAP = 1e3
"""Least ratio of a mask fill's magnitude to the next smaller magnitude in its line."""


def least_fill_sizes(lines: Tensor) -> Tensor:
    """Return the smallest magnitude of a mask fill in each line; inf for a line without one.

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
