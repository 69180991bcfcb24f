"""Choose the number of draws in each sweep: enough to reach every place, within a time limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cuagent.verify.inputs.derive import boolean, brink_steps
from cuagent.verify.inputs.kinds import MAX_SWEEP, MOST_VALUES, Inputs
from cuagent.verify.inputs.lines import LineView, axes, steps_of_every
from cuagent.verify.inputs.ranges import Range
from cuagent.verify.trace.halves import cases
from cuagent.verify.trace.reference_trace import ReferenceTrace

if TYPE_CHECKING:
    from torch import Tensor

SWEEP_S = 0.4
"""Approximate time limit of one sweep in seconds; it limits the number of draws."""
STEP_S, STEP_CALLS = 0.003, 8
"""Assumed time of one draw of a sweep: STEP_S seconds plus STEP_CALLS calls of the reference."""
FEWEST_STEPS = 2
"""Least number of draws of a sweep, even if calls are slow."""
FEW_TAILS, MOST_TAILS = 3, 6
"""Least number of draws of Inputs.TAILS (slow tasks), and the largest (fast tasks)."""
MOST_BRINKS = 24
"""Largest number of draws of Inputs.BRINK."""
FEW_HALVES, MOST_HALVES = 8, 24
"""Number of draws of Inputs.HALVES on slow tasks, and the largest number on fast ones."""


@dataclass(frozen=True)
class SweepCount:
    """Numbers of draws of a sweep: those made, and those needed to reach every position or
    value.
    """

    made: int
    needed: int


def sweep_count(
    kind: Inputs,
    own: Sequence[Tensor],
    ranges: Sequence[Range | None],
    line_views: Sequence[Sequence[LineView]],
    trace: ReferenceTrace,
    call_s: float,
) -> SweepCount:
    """Return the number of draws in a sweep of `kind`.

    `own` are inputs from get_inputs; `ranges` and `line_views` have one item per input; `call_s` is
    the seconds of one call of the reference.
    """
    most, selections = int(SWEEP_S / (STEP_S + STEP_CALLS * call_s)), trace.selections
    if kind is Inputs.TAILS:
        made = max(FEW_TAILS, min(MOST_TAILS, most))
        return SweepCount(made, made)
    if kind is Inputs.HALVES:
        needed = len(cases(trace.scales))
        return SweepCount(max(1, min(needed, max(FEW_HALVES, min(most, MOST_HALVES)))), needed)
    if kind is Inputs.BRINK:
        needed = brink_steps(own, trace.edges)
        return SweepCount(max(1, min(needed, most, MOST_BRINKS)), needed)
    if kind is Inputs.EVERY:
        values = zip(own, map(values_of, ranges), strict=True)
        needed = max((sum(steps_of_every(x, count)) for x, count in values), default=0)
        return SweepCount(max(1, min(needed, most, MAX_SWEEP - 1)), needed)
    of_kind = boolean if kind is Inputs.SINGLE else is_float
    lines = [known or axes(x) for x, known in zip(own, line_views, strict=True) if of_kind(x)]
    needed = max(
        (len(all_) * max(line_view.steps for line_view in all_) for all_ in lines), default=0
    )
    if kind is Inputs.SINGLE or any(chosen.name in ("any", "all") for chosen in selections):
        needed *= 2  # once with the rest below zero or clear, once the opposite
    if kind is Inputs.MOVING and not any(line_views):
        needed = min(needed, FEWEST_STEPS)  # no operator chooses among inputs
    return SweepCount(max(FEWEST_STEPS, min(needed, most, MAX_SWEEP - 1)), needed)


def values_of(bounds: Range | None) -> int:
    """Return how many values of an integer input with these bounds a sweep tries; 0 if there are
    too many.
    """
    if bounds is None or bounds[1] - bounds[0] >= MOST_VALUES:
        return 0
    return max(bounds[1] - max(bounds[0], 0) + 1, 0) + (bounds[0] < 0)


def is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point()
