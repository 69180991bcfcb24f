"""The outcome of one candidate, and the measurements of the ladder that limit the gain of any.

The planner decides by these alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cuagent.expert.candidate import Candidate
from cuagent.timing import Ratio

CLEAR_GAIN = 1.05
"""Speedup over every baseline that counts as a clear gain, by the lower confidence limits."""
SCHEDULE_REACH = 2.0
"""Largest speedup that another schedule of the same kernels can bring.

For example, all four schedules of a bf16 RMSNorm ran at 0.14 times the speed of the best rung.
"""
NEAR_FLOOR = 1.15
"""Ratio of a candidate's time to the floor below which no other schedule is tried.

Another schedule could gain only a few percent, and costs a verdict and a timing.
"""
OWN_SHARE = 0.05
"""Least share of a candidate's time in its generated kernels for which other schedules are
tried.
"""


@dataclass(frozen=True)
class Outcome:
    """Result of one candidate. `ratios` are the baselines' times over its time, at quick effort."""

    candidate: Candidate
    accepted: bool
    reason: str
    attempt: int | None = None
    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    broken_files: tuple[str, ...] = ()
    """Paths of the kernel files that did not compile."""
    seconds: float | None = None
    """Candidate's seconds per call; None if it was not timed."""
    own_share: float | None = None
    """Share of the candidate's time in its generated kernels; None without a profile."""
    busy: float | None = None
    """Seconds of a call in which the GPU computes; None without a profile, and on a CPU."""
    judged_s: float = 0.0
    """Seconds that its verdict and timing took; 0 if they are not known."""

    @property
    def lower_limit(self) -> float:
        """Smallest lower confidence limit of the speedups over the baselines; 0 if it was not
        timed.
        """
        return min((r.low for r in self.ratios.values()), default=0.0)

    @property
    def speedup(self) -> float:
        """Candidate's smallest speedup over a baseline; 0 if it was not timed."""
        return min((r.value for r in self.ratios.values()), default=0.0)

    @property
    def is_clear_gain(self) -> bool:
        """True if the speedup over every baseline is at least CLEAR_GAIN, by the lower confidence
        limits.
        """
        return self.lower_limit >= CLEAR_GAIN

    @property
    def is_likely_gain(self) -> bool:
        """True if the measured speedup over every baseline is at least CLEAR_GAIN; limits are not
        considered.
        """
        return self.speedup >= CLEAR_GAIN

    @property
    def is_slower(self) -> bool:
        """True if the candidate is slower than eager with certainty."""
        return self.is_slower_than("eager")

    def is_slower_than(self, baseline: str) -> bool:
        """Return True if the candidate is slower than `baseline` with certainty."""
        ratio = self.ratios.get(baseline)
        return ratio is not None and ratio.high < 1


@dataclass(frozen=True)
class Bounds:
    """Measurements of the ladder that limit the gain of any kernel."""

    rung: str = ""
    """Name of the ladder's best rung; "" without a ladder."""
    rung_seconds: float = math.inf
    """Seconds per call of the best rung."""
    floor: float = 0.0
    """Least seconds per call in which the inputs and outputs can be moved; 0 if that is not
    certain.
    """
    in_tf32: bool = False
    """True if the reference's products and convolutions run in TF32, in a network most of them.

    This is read from the names of its kernels in a profile; without a profile, from its error.
    """
    is_exact: bool = False
    """True if the error of the reference's result is that of float32 arithmetic.

    Its convolutions then do not run in TF32, unless a later sum over many positions hides their
    error.
    """
    kernels_only: bool = False
    """True if no rung can be the result, and a candidate must compute in its own kernels."""

    @property
    def rung_is_optimal(self) -> bool:
        """True if the best rung can be the result, and no kernel can be a clear gain over it."""
        return not self.kernels_only and self._is_optimal(self.rung_seconds)

    def end_search(self, best: Outcome) -> bool:
        """Return True if no other candidate can be a clear gain over `best`."""
        return best.seconds is not None and self._is_optimal(best.seconds)

    def schedules_may_win(self, best: Outcome) -> bool:
        """Return True if another schedule of the kernels of `best` may be faster than the best
        rung.
        """
        if best.own_share is not None and best.own_share < OWN_SHARE:
            return False
        if best.seconds is not None and best.seconds < NEAR_FLOOR * self.floor:
            return False
        rung = best.ratios.get(self.rung)
        return rung is None or rung.high * SCHEDULE_REACH >= 1

    def _is_optimal(self, seconds: float) -> bool:
        return self.floor > 0 and seconds < CLEAR_GAIN * self.floor


NO_BOUNDS = Bounds()
"""Bounds without a ladder: they limit nothing."""


def best_of(outcomes: Sequence[Outcome]) -> Outcome | None:
    """Return the accepted outcome with the highest lower limit of its ratios; None without one.

    The middle of a wide interval would overstate the speed.
    """
    return max((o for o in outcomes if o.accepted), key=lambda o: o.lower_limit, default=None)
