"""Draw one tensor of each kind (`Inputs`); `derive` puts it in the place of the task's own.

Values differ between rows, so that a kernel that mixes up rows gives wrong results. A level is the
variant of a row in a kind, such as its scale, its sign or the value that fills it.
`random_values.row_values` assigns levels to rows and to whole blocks of rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cuagent.verify.inputs.lines import SHORTEST_AXIS
from cuagent.verify.inputs.random_values import (
    first_of_rows,
    randn,
    row_values,
    uniform,
)

if TYPE_CHECKING:
    from torch import Generator, Tensor

EXPONENTS = (-8, 8, 0, -4, 4)
"""Exponents of the powers of two by which rows are scaled in MIXED."""
TINY_EXPONENTS = (-14, -22, -30)
"""Exponents of the powers of two by which rows are scaled in TINY.

The fourth power of the last is a normal fp32.
"""
BRINKS = 3
"""Number of cases of `brink` for each threshold."""
TAILS = ((5, 1), (-5, 1), (0, 5), (8, 1), (-8, 1), (0, 3), (3, 1), (-3, 1), (0, 8))
"""(mean, deviation) of the normal numbers in each step of Inputs.TAILS; slow tasks get the first
three.
"""
SIGNS = (-1, 1)
FLAT_LEVELS = 3
"""Number of variants of a row in FLAT: all zeros, one constant, or unchanged."""
FEW_IN_A_LINE = 8
"""Expected number of nonzero elements in a line of FEW."""
LONGEST = 1 << 20
"""Largest number of elements of a tensor whose corners in CORNERS have their full magnitude."""
EXTREME_SIZE, FAR_EXTREME_SIZE = 8.0, 200.0
"""Magnitudes of extremes in EDGES and FAR_EDGES.

The largest of a million normal numbers is about 5, and exp(89) overflows.
"""


def mixed(normal: Tensor, generator: Generator) -> Tensor:
    """Return `normal` with rows and whole blocks scaled by the powers of two in EXPONENTS."""
    return normal * row_values(EXPONENTS, normal, generator).exp2()


def tiny(normal: Tensor, generator: Generator) -> Tensor:
    """Return `normal` with rows and whole blocks scaled to tiny numbers.

    With enough rows, some are not scaled.
    """
    return normal * row_values((*TINY_EXPONENTS, 0), normal, generator).exp2()


def brink(tensor: Tensor, edges: Sequence[float], case: int, generator: Generator) -> Tensor:
    """Return a tensor that repeats one value, except for one number of each row at a threshold.

    `edges` are the thresholds. The repeated value is 0, threshold - 1 or threshold + 1. `case`
    selects the threshold and the value: there are BRINKS cases for each threshold.
    """
    import torch

    edge = edges[case % len(edges)]
    around = (0.0, edge - 1, edge + 1)[case // len(edges) % BRINKS]
    width = tensor.shape[-1] if tensor.dim() else 1
    first = first_of_rows(tensor)
    place = (torch.special.ndtr(randn(first, generator)) * width).long()
    places = torch.arange(width, device=tensor.device).view(tensor.shape[-1:])
    return torch.where(places == place, edge, around).to(tensor.dtype)


def tails(
    own: Sequence[Tensor],
    free: Sequence[bool],
    step: int,
    generator: Generator,
    *,
    mixed: bool = False,
) -> list[Tensor]:
    """Return `own` with one or all floating tensors replaced by normal numbers of step `step` of
    TAILS.

    A nonzero mean replaces one tensor only, because the difference of two shifted tensors would
    cancel it; a zero mean replaces all. With `mixed` the mean is added to half of the elements and
    subtracted from the others. Tensors that are not `free` have a limited domain and stay
    unchanged, unless no floating tensor is free.
    """
    real = [number for number, x in enumerate(own) if x.is_floating_point()]
    real = [number for number in real if free[number]] or real
    mean, deviation = TAILS[step % len(TAILS)]
    chosen = real[step // len(SIGNS) % len(real) :][:1] if mean else real
    drawn = list(own)
    for number in chosen:
        normal = randn(own[number], generator)
        shift = mean * randn(own[number], generator).sign() if mixed else mean
        drawn[number] = (normal * deviation + shift).to(own[number].dtype)
    return drawn


def missing(normal: Tensor, generator: Generator, *, infinities: bool = False) -> Tensor:
    """Return `normal` with one NaN, several NaN, only NaN or no NaN in rows and whole blocks.

    With `infinities`, a third of the other numbers in most rows are infinite, of both signs.
    """
    import torch

    level = row_values(range(4), normal, generator)
    one = planted(normal, (math.nan,), generator).isnan()
    some = randn(normal, generator) > 0
    lost = (level == 3) | ((level == 2) & some) | ((level == 0) & one)
    if infinities:
        far = math.inf * normal.sign()
        normal = torch.where((level != 1) & (randn(normal, generator) > 0.4), far, normal)
    return torch.where(lost, torch.full_like(normal, math.nan), normal)


def levels(normal: Tensor, offset: float, generator: Generator) -> Tensor:
    """Return `normal` with `offset` added to, or subtracted from, rows and whole blocks."""
    return normal + offset * row_values(SIGNS, normal, generator)


def large(normal: Tensor, size: float, generator: Generator) -> Tensor:
    """Return `normal` with rows and whole blocks below -`size`, of magnitude `size`, or
    unchanged.
    """
    import torch

    level = row_values(range(3), normal, generator)
    below = -size * (1 + normal.abs())
    return torch.where(level == 0, below, torch.where(level == 1, size * normal, normal))


def planted(normal: Tensor, values: Sequence[float], generator: Generator) -> Tensor:
    """Return `normal` with one element of each row set to one of `values`.

    The value is selected by row or by block. The value 0 leaves the row unchanged.
    """
    import torch

    level = row_values(range(len(values)), normal, generator).long()
    width = normal.shape[-1] if normal.dim() else 1
    places = torch.arange(width, device=normal.device).view(normal.shape[-1:])
    place = (torch.special.ndtr(randn(first_of_rows(normal), generator)) * width).long()
    value = torch.tensor(list(values), dtype=normal.dtype, device=normal.device)[level]
    return torch.where((places == place) & (value != 0), value, normal)


def flat(normal: Tensor, generator: Generator) -> Tensor:
    """Return `normal` with rows and whole blocks filled with zeros or with one power of two.

    Some rows do not change. A tensor of one row becomes zero. A reference that divides by a row's
    norm or variance is then not finite on any draw of this kind, and the kind is not used.
    """
    import torch

    level = row_values(range(FLAT_LEVELS), normal, generator)
    like = first_of_rows(normal)
    value = randn(like, generator).round().clamp(-2, 2).exp2() * randn(like, generator).sign()
    return torch.where(level == 0, torch.zeros_like(normal), torch.where(level == 1, value, normal))


def flat_among(own: Tensor, flat_rows: Tensor) -> Tensor:
    """Return `own` with the rows that are zero or flat in `flat_rows` set to zero, or to their own
    first number."""
    import torch

    if not own.dim() or not own.numel():
        return own
    first = flat_rows[..., :1]
    alike = (flat_rows == first).all(-1, keepdim=True)
    repeated = torch.where(alike, own[..., :1], own)
    return torch.where(alike & (first == 0), torch.zeros_like(own), repeated)


def edges(normal: Tensor, extreme_size: float) -> Tensor:
    """Add extremes to both ends of every long axis of `normal`, in place; signs alternate between
    lines.

    A reduction that omits the first or last element of a line then gives a wrong result.
    """
    import torch

    signs = torch.ones_like(normal)
    for axis, size in enumerate(normal.shape):
        line = 1 - 2 * (torch.arange(size, device=normal.device) % 2)
        signs = signs * line.view([-1 if other == axis else 1 for other in range(normal.dim())])
    for axis, size in enumerate(normal.shape):
        if size >= SHORTEST_AXIS:
            push = extreme_size * signs.select(axis, 0)
            normal.select(axis, 0).sub_(push)
            normal.select(axis, -1).add_(push)
    return normal


def corners(normal: Tensor, sign: int) -> Tensor:
    """Set the first and last element of the tensor, and of each block along its leading axes, in
    place.

    Their magnitude is the root of the number of elements in the block, so that each matters in a
    sum over the block, or in a sum of squares, at any length. In tensors of more than LONGEST
    elements it is smaller; otherwise a plain sum of squares in fp32 would absorb all other terms.
    """
    extreme_size = sign * min(1.0, (LONGEST / max(1, normal.numel())) ** 0.5)
    for leading in reversed(range(max(1, normal.dim() - 1))):
        blocks = normal.view(math.prod(normal.shape[:leading]), -1)
        if blocks.numel():
            blocks[:, 0] = blocks[:, -1] = extreme_size * blocks.shape[1] ** 0.5
    return normal


def few(normal: Tensor, generator: Generator, bits: int = 17) -> Tensor:
    """Return zeros with about FEW_IN_A_LINE numbers 1 + m / 2^17 per row, m odd, 2^8 < m < 2^9.

    Two bfloat16 numbers hold the 1 and eight bits of m, which has nine. Sums of up to 127 such
    numbers, with factors of one, are exact in fp32. If the reference's products keep fewer `bits`
    behind the point, 2^bits is the divisor, and m has at most `bits` - 1 bits.
    """
    bits = min(bits, 17)
    half = 2 ** (min(9, bits - 1) - 1)
    width = normal.shape[-1] if normal.dim() else 1
    others = uniform(normal) >= min(0.5, FEW_IN_A_LINE / max(width, 1))
    m = uniform(randn(normal, generator)).mul_(half // 2 - 1).floor_().mul_(2).add_(half + 1)
    return m.div_(2**bits).add_(1).masked_fill_(others, 0)


def masked(tensor: Tensor, generator: Generator) -> Tensor:
    """Return the boolean tensor with rows and whole blocks set to True or to False; others are
    unchanged.
    """
    level = row_values(range(3), tensor, generator)
    return (tensor & (level != 0)) | (level == 1)


def extreme(tensor: Tensor, bounds: tuple[int, int], generator: Generator) -> Tensor:
    """Return the integers with a third replaced by the least of the range, a third by the largest.

    The first element is the largest and the last one the least, so that in several tensors the
    extremes coincide.
    """
    import torch

    third = torch.rand(tuple(tensor.shape), generator=generator, device=tensor.device)
    third.view(-1)[:1], third.view(-1)[-1:] = 1 / 2, 0
    low, high = (torch.full_like(tensor, bound) for bound in bounds)
    return torch.where(third < 1 / 3, low, torch.where(third < 2 / 3, high, tensor))
