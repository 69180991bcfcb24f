"""Which numbers of a line are of another size than the others: marks, as -1e9 for what is hidden.

What counts for equal goes by the size of what it is compared with. A mark says nothing about the
size of the numbers beside it: within roundoff of 1e9 all of them are equal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cuagent.verify.trace.mask_fills import LEAST

if TYPE_CHECKING:
    from torch import Tensor

VOID = 1e3
"""No numbers of one kind leave so wide a gap, as a factor, between one size and the next."""


def least_fill_sizes(lines: Tensor) -> Tensor:
    """[lines] of [lines, places]: the least size of a mark in each; inf where there are none."""
    import torch

    none = lines.new_full(lines.shape[:1], torch.inf)
    sizes = lines.abs().nan_to_num(0.0, torch.inf)
    if lines.shape[1] < 2 or not bool((sizes >= LEAST).any()):
        return none
    ordered = sizes.sort(-1).values
    below, above = ordered[:, :-1], ordered[:, 1:]
    marks = (above >= LEAST) & (above > VOID * below)
    return torch.where(marks, above, torch.inf).amin(-1)
