"""Numbers on which a rounding finds ties: half up, half to even and half away from zero differ.

A scale before the rounding is brought to a power of two, since at any other the quotient rounds and
honest kernels differ. Not covered: scales that are no whole number and no power of two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuagent.verify.inputs import draws

if TYPE_CHECKING:
    from torch import Generator, Tensor

HALVES, PLANTED = 5, 3
"""Cases of numbers with ties, and the first of those with a scale among the numbers."""
FARTHEST_HALF, MANY_ROWS = 8, 4


def cases(scales: Sequence[float]) -> list[tuple[float, int]]:
    """Each scale with the cases of halves that it has, one without any first."""
    found = [(1.0, 0)]
    for scale in scales:
        power = math.frexp(scale)[0] == 1 / 2
        found += [(scale, case) for case in (1, 2) if power]
        found += [(scale, case) for case in range(PLANTED, HALVES) if scale >= 2]
    return found


def halves(tensor: Tensor, scale: float, case: int, generator: Generator) -> Tensor:
    """Multiples of a half, most of them odd, so that a rounding finds ties; there are HALVES cases.

    As they are; times and divided by `scale`, if that is a power of two; or with `scale` as the
    largest size of each row, of the tensor and, where there are rows enough, of its columns, so
    that what divides by that largest number scales by one; or with it as the distance of the least
    and the largest. Only such are taken as are the same after any division and product by `scale`.
    """
    import torch

    numbers = torch.arange(-2 * FARTHEST_HALF, 2 * FARTHEST_HALF + 1, dtype=torch.float32) / 2
    back = torch.tensor(scale, dtype=torch.float32)
    safe = (numbers / back * back == numbers) & (numbers * (1 / back) * back == numbers)
    safe &= numbers.abs() <= max(1.0, scale / 2)
    numbers = numbers[safe] if case in (PLANTED, PLANTED + 1) else numbers
    odd = numbers[numbers % 1 != 0]
    table = torch.cat([odd, odd, numbers]).to(tensor.device)
    place = torch.special.ndtr(draws.randn(tensor, generator)).mul(table.numel()).long()
    drawn = table[place.clamp(max=table.numel() - 1)]
    if case in (1, 2):
        return (drawn * scale ** (1 if case == 1 else -1)).to(tensor.dtype)
    if case >= PLANTED and drawn.dim() and drawn.numel() > 1:
        drawn = _planted_scale(drawn, scale, generator, ranged=case > PLANTED)
    return drawn.to(tensor.dtype)


def _planted_scale(drawn: Tensor, scale: float, generator: Generator, *, ranged: bool) -> Tensor:
    """With numbers in each row that make up `scale`."""
    import torch

    lines = drawn.reshape(-1, drawn.shape[-1]) if drawn.shape[-1] > 1 else drawn.reshape(1, -1)
    width = lines.shape[1]
    first = (
        (torch.special.ndtr(draws.randn(lines[:, :1], generator)) * width)
        .long()
        .clamp(max=width - 1)
    )
    if ranged:
        low = -float(int(scale) // 2)
        lines = lines.clamp(low, low + scale)
        lines = lines.scatter(1, first, low).scatter(1, (first + 1) % width, low + scale)
        return lines.view(drawn.shape)
    if lines.shape[0] >= MANY_ROWS:
        lines = torch.cat(
            [torch.full_like(lines[:1], scale) * draws.balanced(lines[:1], generator), lines[1:]]
        )
    return lines.scatter(1, first, scale).view(drawn.shape)
