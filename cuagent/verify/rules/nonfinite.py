"""Draws with NaN and infinities, on which honest kernels differ in what becomes of them.

`fmaxf` drops a NaN that torch.relu hands on, a convolution by Fourier transform spreads one over
the whole image, a one-hot product over all segments, a sort by insertion leaves numbers in other
places (so that a reference that chooses among elements is not tried on NaN at all). None of that
is wrong by any contract that a reference states, so there only those elements are held against a
candidate that are numbers in the reference, in either precision, and in the candidate's output;
integers and truth values, which hang on comparisons with NaN, are not. What differs otherwise is
reported.

Not here: inputs that a task may draw by itself. Where its own inputs, or its own range of integers
and booleans, lead to NaN or Inf, these must stand where the reference has them (`tolerance`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.verify.tensors import BLOCK, real

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.verify.rules.types import Expected


@dataclass(frozen=True)
class Strays:
    """Where one output and the reference differ in what is no number."""

    lost: int
    """Numbers where the reference has NaN or Inf."""
    gained: int
    """NaN or Inf where the reference has numbers."""
    other: int
    """One for the other; and integers that are not equal."""
    total: int

    def __bool__(self) -> bool:
        return bool(self.lost + self.gained + self.other)

    def __str__(self) -> str:
        return (
            f"differs from the reference in {self.lost + self.gained + self.other} of {self.total} "
            f"elements (numbers for NaN or Inf {self.lost}, NaN or Inf for numbers {self.gained}, "
            f"others {self.other}); reported, not held against it"
        )


def numbers_only(block: Sequence[Tensor], *, paired: bool) -> tuple[Tensor, ...]:
    """Of x, r, y, s and what comes behind them, in fp64, what the strict rule is asked about.

    `paired`: two neighbours are one complex number.
    """
    wide = [tensor.double() for tensor in block]
    x, r, y = wide[:3]
    numbers = x.isfinite() & r.isfinite() & y.isfinite()
    if paired:
        numbers = numbers.view(-1, 2).all(1).repeat_interleave(2)
    x, r, y, s, *moved = (tensor[numbers] for tensor in wide)
    return x, r, y, s.nan_to_num(0.0, 0.0, 0.0), *moved


def finite_only(block: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The block in fp64 where none of x, r and y is NaN or Inf."""
    wide = tuple(tensor.double() for tensor in block)
    x, r, y, *_ = wide
    if _plain(x, r, y):
        return wide
    finite = x.isfinite() & r.isfinite() & y.isfinite()
    return tuple(tensor[finite] for tensor in wide)


def misplaced(block: Sequence[Tensor]) -> Tensor | None:
    """Which x are not finite and agree with neither r nor y, or are finite where neither is.

    None where there is none.
    """
    x, r, y = (tensor.double() for tensor in block[:3])
    if _plain(x, r, y):
        return None
    special = ~(x.isfinite() & r.isfinite() & y.isfinite())
    agrees = (x == r) | (x == y) | (x.isnan() & (r.isnan() | y.isnan()))
    # Where only one of the two references overflows, a finite answer is right as well.
    undecided = x.isfinite() & (r.isfinite() | y.isfinite())
    found = special & ~agrees & ~undecided
    return found if bool(found.any()) else None


def all_misplaced(blocks: Iterable[Sequence[Tensor]], output: Tensor) -> Tensor:
    """True for each element of the flattened output that is misplaced."""
    import torch

    masks = []
    for block in blocks:
        mask = misplaced(block)
        masks.append(torch.zeros_like(block[0], dtype=torch.bool) if mask is None else mask)
    wrong = torch.cat(masks)
    return wrong.view(-1, 2).any(1) if output.is_complex() else wrong


def _plain(*tensors: Tensor) -> bool:
    """Surely no NaN or Inf: either would stay in the sum, a sixteenth of `isfinite`'s time."""
    return all(bool(tensor.sum().isfinite()) for tensor in tensors)


def strays(outputs: Sequence[Tensor], expected: Expected) -> Strays:
    """What `numbers_only` leaves out, and integers, counted."""
    lost = gained = other = 0
    for x, r, y in zip(outputs, expected.declared, expected.precise, strict=True):
        if not real(x):
            other += int((x != r).sum())
            continue
        flat = (tensor.reshape(-1).split(BLOCK[x.device.type]) for tensor in (x, r, y))
        for given, declared, precise in zip(*flat, strict=True):
            found = _strays(given, declared, precise)
            lost, gained, other = lost + found[0], gained + found[1], other + found[2]
    return Strays(lost, gained, other, sum(x.numel() for x in outputs))


def _strays(x: Tensor, r: Tensor, y: Tensor) -> tuple[int, int, int]:
    here, there = x.isfinite(), r.isfinite() & y.isfinite()
    lost = here & ~r.isfinite() & ~y.isfinite()
    same = (x == r) | (x == y) | (x.isnan() & (r.isnan() | y.isnan()))
    other = ~here & ~there & ~same
    return int(lost.sum()), int((~here & there).sum()), int(other.sum())
