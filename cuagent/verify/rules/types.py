"""Data of the strict rule: what the oracle computed for one draw, and the rule's result."""

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
class Moved:
    """How far an answer moves within honest roundoff (`doubts`)."""

    furthest: Sequence[Tensor]
    """Per element, fp64: the largest change under perturbation by `bounds.reach`."""
    carried: Sequence[float]
    """For each tensor the rms change under roundoff in each operator, in units of u."""
    tied: Sequence[Tensor] = ()
    """Per element, fp64: the largest change where equals are chosen in another order; empty where
    nothing is chosen."""
    undecided: bool = False
    """Whether numbers decide that are not the same in both precisions: then a choice is a matter of
    roundoff even where what is made of it is exact (the nearest of equally near codes)."""


@dataclass(frozen=True)
class Expected:
    """What the oracle says about one draw; one tensor each for every tensor of the output."""

    declared: Sequence[Tensor]
    """The reference in its own precision."""
    precise: Sequence[Tensor]
    """The reference in fp64."""
    spread: Sequence[Tensor]
    """Per element, in the type of `precise`: its rms change under perturbation by UNIT; of integers
    and booleans the largest change under perturbation by `bounds.reach`."""
    places: Sequence[Places | None] = ()
    """What indices were chosen from, where the output holds some; empty where nowhere."""
    moved: Moved | None = None
    """Asked in doubt only."""
    certain: bool = False
    """On round inputs: whether something is decided, and all of it by the same numbers in both
    precisions. Then roundoff chooses nothing, though what is made of it (a mean) is not exact."""


@dataclass(frozen=True)
class Finding:
    """The strict rule on one draw."""

    passed: bool
    ratio: float
    """Largest error over its bound; inf where something is wrong that has no bound."""
    max_error: float
    rms_error: float
    precision: Precision | None
    """Finest arithmetic that explains the error on this draw; None if none does."""
    note: str = ""
    rms_bound: float = math.nan
    hint: str = ""
    """What to look for."""
    steep: bool = False
    """Refused, and by no more than each element moves within honest roundoff (`Moved`)."""
