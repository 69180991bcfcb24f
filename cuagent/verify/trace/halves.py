"""Draw numbers on which rounding modes differ: half up, half to even, half away from zero.

A reference may scale numbers before it rounds them. The drawn numbers make that scaling exact. If
it had roundoff, correct kernels would differ. Not covered: scales that are neither whole nor a
power of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuagent.verify.inputs.random_values import balanced, randn

if TYPE_CHECKING:
    from torch import Generator, Tensor

HALVES, PLANTED = 5, 3
"""Number of cases of `halves`, and the first case that puts the scale itself among the numbers."""
FARTHEST_HALF, MANY_ROWS = 8, 4
"""Largest absolute value that `halves` draws, and a number of rows.

A tensor with at least that many rows contains the scale in its columns too.
"""


def cases(scales: Sequence[float]) -> list[tuple[float, int]]:
    """Return the (scale, case) arguments of `halves` for the steps of the sweep.

    `scales` are the constants by which the reference multiplies. The first pair is (1, 0).
    """
    found = [(1.0, 0)]
    for scale in scales:
        power = math.frexp(scale)[0] == 1 / 2
        found += [(scale, case) for case in (1, 2) if power]
        found += [(scale, case) for case in range(PLANTED, HALVES) if scale >= 2]
    return found


def halves(tensor: Tensor, scale: float, case: int, generator: Generator) -> Tensor:
    """Draw multiples of a half with the shape of `tensor`, most of them odd multiples.

    `scale` is a constant by which the reference may multiply. Its effect by case:
    - 0: none
    - 1, 2: the numbers are multiplied (1) or divided (2) by `scale`, a power of two
    - 3: the largest magnitude of each row, of the tensor and, with enough rows, of its columns is
      `scale`, so that a division by the largest magnitude, times `scale`, is exact
    - 4: the difference between the least and the largest number is `scale`

    Cases 3 and 4 use only numbers that a division and a product by `scale` leave unchanged.
    """
    import torch

    numbers = torch.arange(-2 * FARTHEST_HALF, 2 * FARTHEST_HALF + 1, dtype=torch.float32) / 2
    back = torch.tensor(scale, dtype=torch.float32)
    safe = (numbers / back * back == numbers) & (numbers * (1 / back) * back == numbers)
    safe &= numbers.abs() <= max(1.0, scale / 2)
    numbers = numbers[safe] if case in (PLANTED, PLANTED + 1) else numbers
    odd = numbers[numbers % 1 != 0]
    table = torch.cat([odd, odd, numbers]).to(tensor.device)
    place = torch.special.ndtr(randn(tensor, generator)).mul(table.numel()).long()
    drawn = table[place.clamp(max=table.numel() - 1)]
    if case in (1, 2):
        return (drawn * scale ** (1 if case == 1 else -1)).to(tensor.dtype)
    if case >= PLANTED and drawn.dim() and drawn.numel() > 1:
        drawn = _planted_scale(drawn, scale, generator, ranged=case > PLANTED)
    return drawn.to(tensor.dtype)


def _planted_scale(drawn: Tensor, scale: float, generator: Generator, *, ranged: bool) -> Tensor:
    """Put `scale` into each row: as one number or, with `ranged`, as the difference of its
    extremes.
    """
    import torch

    lines = drawn.reshape(-1, drawn.shape[-1]) if drawn.shape[-1] > 1 else drawn.reshape(1, -1)
    width = lines.shape[1]
    first = (torch.special.ndtr(randn(lines[:, :1], generator)) * width).long().clamp(max=width - 1)
    if ranged:
        low = -float(int(scale) // 2)
        lines = lines.clamp(low, low + scale)
        lines = lines.scatter(1, first, low).scatter(1, (first + 1) % width, low + scale)
        return lines.view(drawn.shape)
    if lines.shape[0] >= MANY_ROWS:
        lines = torch.cat(
            [
                torch.full_like(lines[:1], scale) * balanced(lines[:1], generator),
                lines[1:],
            ]
        )
    return lines.scatter(1, first, scale).view(drawn.shape)
