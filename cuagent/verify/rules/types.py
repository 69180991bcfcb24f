"""Data classes of the strict rule: the oracle's answer to one draw, and the rule's result."""

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
    """Largest changes of an answer that a correct kernel's roundoff may cause
    (`oracle.sensitivity`).
    """

    furthest: Sequence[Tensor]
    """Largest change of each output element under perturbation by `bounds.reach`, in fp64."""
    carried: Sequence[float]
    """One number per output: its rms change under roundoff in every operator, in units of u."""
    tied: Sequence[Tensor] = ()
    """Largest change of each output element under other tie-breaks, in fp64.

    Empty if no operator selects elements.
    """
    undecided: bool = False
    """True if some comparison, rounding or choice depends on numbers that differ in the two
    precisions.

    Roundoff then determines the choice, even if results computed from it are exact (the nearest of
    equally near codes).
    """
    roundoff_chooses: bool = False
    """True if an index was chosen although the next element is within roundoff of the chosen
    one.
    """


@dataclass(frozen=True)
class Expected:
    """The oracle's right answer to one draw, with its uncertainty.

    Lists have one item per output.
    """

    declared: Sequence[Tensor]
    """Outputs of the reference in its own precision."""
    precise: Sequence[Tensor]
    """Outputs of the reference in fp64."""
    spread: Sequence[Tensor]
    """Uncertainty of each output.

    For floating outputs: rms change of each element under perturbation by UNIT, in the dtype of
    `precise`. For integers and booleans: largest change under perturbation by `bounds.reach`.
    """
    places: Sequence[Places | None] = ()
    """Elements from which the indices in an output were chosen.

    None for outputs without traced indices; empty if no output has any.
    """
    sensitivity: Sensitivity | None = None
    """Measured sensitivity; None until an output exceeds the bounds that do not need it."""
    certain: bool = False
    """True if roundoff changes no comparison, rounding or choice on this draw.

    The inputs are round numbers (`kinds.ROUND`), and all such decisions (at least one) depend on
    numbers that are equal in both precisions. Results computed after them (a mean) need not be
    exact.
    """


@dataclass(frozen=True)
class Finding:
    """Result of the strict rule for one output set on one draw."""

    passed: bool
    ratio: float
    """Largest ratio of an error to its bound; inf for an error without a bound (a wrong
    integer).
    """
    max_error: float
    rms_error: float
    precision: Precision | None
    """Finest arithmetic whose roundoff explains the error on this draw; None if none does."""
    note: str = ""
    rms_bound: float = math.nan
    hint: str = ""
    """Likely cause of the error, for the user."""
    within_sensitivity: bool = False
    """True if the draw is refused, although each excess error is within its element's
    sensitivity.
    """
