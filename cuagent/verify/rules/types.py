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
    """Changes of an answer that the roundoff of a correct kernel may cause
    (`oracle.sensitivity`)."""

    furthest: Sequence[Tensor]
    """Largest change of each element under perturbation by `bounds.reach`, in fp64."""
    carried: Sequence[float]
    """One number per output: its rms change under roundoff in every operator, in units of u."""
    tied: Sequence[Tensor] = ()
    """Largest change of each element when operators choose in another order among equal elements,
    in fp64; empty if no operator chooses."""
    undecided: bool = False
    """True if decisions (comparisons, roundings, choices) depend on numbers that differ between the
    two precisions. Roundoff then determines the choice, even if results computed from it are exact
    (the nearest of equally near codes)."""
    roundoff_chooses: bool = False
    """True if an index was chosen although the next number is within roundoff of the chosen one."""


@dataclass(frozen=True)
class Expected:
    """The oracle's answer to one draw. Each list has one item per output tensor."""

    declared: Sequence[Tensor]
    """Outputs of the reference in its own precision."""
    precise: Sequence[Tensor]
    """Outputs of the reference in fp64."""
    spread: Sequence[Tensor]
    """Floating outputs: rms change of each element under perturbation by UNIT, in the dtype of
    `precise`. Integers and booleans: largest change under perturbation by `bounds.reach`."""
    places: Sequence[Places | None] = ()
    """Elements from which the indices in an output were chosen; None for outputs without traced
    indices; empty if no output has any."""
    sensitivity: Sensitivity | None = None
    """None until the first bounds have refused the draw."""
    certain: bool = False
    """True if the inputs are round numbers (`kinds.ROUND`) and all decisions, at least one, depend
    on numbers that are equal in both precisions. Roundoff then changes no decision, but results
    computed after it (a mean) need not be exact."""


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
    """True if the draw is refused, but each excess error is within the sensitivity of its
    element."""
