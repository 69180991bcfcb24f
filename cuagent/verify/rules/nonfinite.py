"""Rules for NaN and infinities: which elements the strict rule judges.

Correct kernels treat NaN in inputs differently. `fmaxf` drops a NaN that torch.relu propagates. A
convolution by Fourier transform spreads one over the whole image, and a one-hot product over all
segments. An insertion sort puts numbers in other places, so a reference that chooses among elements
gets no draw with NaN. No reference states a contract for these cases. On draws with NaN an element
is therefore judged only if it is finite in the reference, in either precision, and in the
candidate's output. Integers and booleans, which depend on comparisons with NaN, are not judged.
Other differences are reported.

Symbols: x is the candidate's output, r the reference in its own precision, y the fp64 answer, s its
spread. A block contains the same range of elements of each.

Not covered: inputs that a task may draw itself. If get_inputs, or integers and booleans in its
range, lead to NaN or Inf, the candidate must have them where the reference has (`tolerance`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.verify.tensors import BLOCK, is_inexact

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.verify.rules.types import Expected


@dataclass(frozen=True)
class NonfiniteDifferences:
    """Numbers of elements at which outputs and reference differ in NaN or Inf."""

    lost: int
    """Number of elements that are finite in the output, but NaN or Inf in the reference."""
    gained: int
    """Number of elements that are NaN or Inf in the output, but finite in the reference."""
    other: int
    """Number of NaN for Inf, Inf for NaN, and unequal integers."""
    total: int

    def __bool__(self) -> bool:
        return bool(self.lost + self.gained + self.other)

    def __str__(self) -> str:
        return (
            f"differs from the reference in {self.lost + self.gained + self.other} of {self.total} "
            f"elements (finite for NaN or Inf {self.lost}, NaN or Inf for finite {self.gained}, "
            f"others {self.other}); reported only, it does not count against the candidate"
        )


def numbers_only(block: Sequence[Tensor], *, paired: bool) -> tuple[Tensor, ...]:
    """Return x, r, y, s and further tensors in fp64, only at elements where x, r and y are finite.

    With `paired`, two neighbouring elements are one complex number. NaN or Inf in s becomes 0.
    """
    wide = _representable(block)
    x, r, y = wide[:3]
    numbers = x.isfinite() & r.isfinite() & y.isfinite()
    if paired:
        numbers = numbers.view(-1, 2).all(1).repeat_interleave(2)
    x, r, y, s, *moved = (tensor[numbers] for tensor in wide)
    return x, r, y, s.nan_to_num(0.0, 0.0, 0.0), *moved


def finite_only(block: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return all tensors of a block in fp64, only at elements where x, r and y are finite."""
    wide = tuple(_representable(block))
    x, r, y, *_ = wide
    if _plain(x, r, y):
        return wide
    finite = x.isfinite() & r.isfinite() & y.isfinite()
    return tuple(tensor[finite] for tensor in wide)


def _representable(block: Sequence[Tensor]) -> list[Tensor]:
    """Return the block in fp64; where y exceeds the largest number of r's dtype, r replaces it.

    `nan_to_num` replaces an infinity by the largest number of the dtype, so the fp64 answer is not
    the right one there.
    """
    import torch

    wide = [tensor.double() for tensor in block]
    r, y = wide[1:3]
    largest = torch.finfo(block[1].dtype).max
    if y.numel() and not bool(y.abs().max() <= largest):
        wide[2] = torch.where((y.abs() > largest) & y.isfinite(), r, y)
    return wide


def misplaced(block: Sequence[Tensor]) -> Tensor | None:
    """Return a mask of the elements of x with a wrong NaN or Inf; None if there are none.

    Such an element of x is NaN or Inf and equals neither r nor y, or it is finite and both r and y
    are not.
    """
    x, r, y = (tensor.double() for tensor in block[:3])
    if _plain(x, r, y):
        return None
    special = ~(x.isfinite() & r.isfinite() & y.isfinite())
    agrees = (x == r) | (x == y) | (x.isnan() & (r.isnan() | y.isnan()))
    # If only one of the two references overflows, a finite answer is right as well.
    undecided = x.isfinite() & (r.isfinite() | y.isfinite())
    found = special & ~agrees & ~undecided
    return found if bool(found.any()) else None


def all_misplaced(blocks: Iterable[Sequence[Tensor]], output: Tensor) -> Tensor:
    """Return a mask over the flattened output: True where x has a wrong NaN or Inf
    (`misplaced`).
    """
    import torch

    masks = []
    for block in blocks:
        mask = misplaced(block)
        masks.append(torch.zeros_like(block[0], dtype=torch.bool) if mask is None else mask)
    wrong = torch.cat(masks)
    return wrong.view(-1, 2).any(1) if output.is_complex() else wrong


def _plain(*tensors: Tensor) -> bool:
    """Return True if the sum of each tensor is finite, so that all elements are finite.

    This takes 1/16 of the time of `isfinite`. False proves nothing, because a sum may overflow.
    """
    return all(bool(tensor.sum().isfinite()) for tensor in tensors)


def nonfinite_differences(outputs: Sequence[Tensor], expected: Expected) -> NonfiniteDifferences:
    """Count the elements at which NaN or Inf differ between outputs and reference, by kind."""
    lost = gained = other = 0
    for x, r, y in zip(outputs, expected.declared, expected.precise, strict=True):
        if not is_inexact(x):
            other += int((x != r).sum())
            continue
        flat = (tensor.reshape(-1).split(BLOCK[x.device.type]) for tensor in (x, r, y))
        for given, declared, precise in zip(*flat, strict=True):
            found = _differences(given, declared, precise)
            lost, gained, other = lost + found[0], gained + found[1], other + found[2]
    return NonfiniteDifferences(lost, gained, other, sum(x.numel() for x in outputs))


def _differences(x: Tensor, r: Tensor, y: Tensor) -> tuple[int, int, int]:
    here, there = x.isfinite(), r.isfinite() & y.isfinite()
    lost = here & ~r.isfinite() & ~y.isfinite()
    same = (x == r) | (x == y) | (x.isnan() & (r.isnan() | y.isnan()))
    other = ~here & ~there & ~same
    return int(lost.sum()), int((~here & there).sum()), int(other.sum())
