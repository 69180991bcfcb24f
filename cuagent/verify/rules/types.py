"""Data of the strict rule: the oracle's tensors for one draw, and the rule's result."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.task import Precision
from cuagent.verify.rules.ties import Places

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sensitivity:
    """Change of an answer within honest roundoff (`oracle.sensitivity`)."""

    furthest: Sequence[Tensor]
    """Largest change of each element under perturbation by `bounds.reach`, in fp64."""
    carried: Sequence[float]
    """Rms change of each tensor under roundoff in every operator, in units of u."""
    tied: Sequence[Tensor] = ()
    """Largest change of each element when equals are chosen in another order, in fp64; empty if
    nothing is chosen."""
    undecided: bool = False
    """True if decisions depend on numbers that differ between the two precisions. Roundoff then
    determines the choice, even if results computed from it are exact (the nearest of equally near
    codes)."""
    roundoff_chooses: bool = False
    """True if an index was taken where the next number is as near as roundoff."""


@dataclass(frozen=True)
class Expected:
    """The oracle's answer to one draw: one tensor of each kind per tensor of the output."""

    declared: Sequence[Tensor]
    """The reference in its own precision."""
    precise: Sequence[Tensor]
    """The reference in fp64."""
    spread: Sequence[Tensor]
    """Rms change of each element under perturbation by UNIT, in the dtype of `precise`; of integers
    and booleans the largest change under perturbation by `bounds.reach`."""
    places: Sequence[Places | None] = ()
    """Elements that the indices of an output were chosen from; None for other outputs; empty
    if no output holds indices."""
    sensitivity: Sensitivity | None = None
    """Known only after the first bounds refused the draw."""
    certain: bool = False
    """True if, on round inputs, something is decided and always by the same numbers in both
    precisions. Roundoff then changes no choice, though results computed from it (a mean) are not
    exact."""


@dataclass(frozen=True)
class Finding:
    """Result of the strict rule on one draw."""

    passed: bool
    ratio: float
    """Largest ratio of an error to its bound; inf for an error that has no bound."""
    max_error: float
    rms_error: float
    precision: Precision | None
    """Finest arithmetic that explains the error on this draw; None if none does."""
    note: str = ""
    rms_bound: float = math.nan
    hint: str = ""
    """Likely cause, for the reader of the verdict."""
    within_sensitivity: bool = False
    """True if refused, but with errors no larger than the sensitivity of each element."""
