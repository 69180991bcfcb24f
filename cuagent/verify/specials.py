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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cuagent.verify.perturb import real

if TYPE_CHECKING:
    from torch import Tensor

    from cuagent.verify.tolerance import Expected


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


def numbers_only(outputs: Sequence[Tensor], expected: Expected) -> tuple[list[Tensor], Expected]:
    """Of each tensor, in one line, what the strict rule is asked about."""
    numbers = [
        x.isfinite() & r.isfinite() & y.isfinite() if real(x) else (x != x)
        for x, r, y in zip(outputs, expected.declared, expected.precise, strict=True)
    ]

    def left(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor[mask] for tensor, mask in zip(tensors, numbers, strict=True)]

    moved = expected.moved
    if moved is not None:
        tied = left(moved.tied) if moved.tied else ()
        moved = replace(moved, furthest=left(moved.furthest), tied=tied)
    return left(outputs), replace(
        expected,
        declared=left(expected.declared),
        precise=left(expected.precise),
        spread=[tensor.nan_to_num(0.0, 0.0, 0.0) for tensor in left(expected.spread)],
        moved=moved,
    )


def strays(outputs: Sequence[Tensor], expected: Expected) -> Strays:
    """What `numbers_only` leaves out, counted."""
    lost = gained = other = 0
    for x, r, y in zip(outputs, expected.declared, expected.precise, strict=True):
        if not real(x):
            other += int((x != r).sum())
            continue
        here, there = x.isfinite(), r.isfinite() & y.isfinite()
        lost += int((here & ~r.isfinite() & ~y.isfinite()).sum())
        gained += int((~here & there).sum())
        same = (x == r) | (x == y) | (x.isnan() & (r.isnan() | y.isnan()))
        other += int((~here & ~there & ~same).sum())
    return Strays(lost, gained, other, sum(x.numel() for x in outputs))
