"""The judgement of one attempt, and the result that a run gives to its user.

This module contains data only; `judge.py` creates it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from cuagent.arms import COMPILE, EAGER
from cuagent.build import Build
from cuagent.measure.rungs import Gain, Ladder
from cuagent.score import Score
from cuagent.timing import MARGIN, Effort, Ratio, Standing, Timing
from cuagent.verdict import Verdict
from cuagent.verify.domain import Domain


@dataclass(frozen=True)
class Judgement:
    """Result of judging one attempt: build, verdict, timing and score."""

    attempt: str
    """Digest of the attempt."""
    build: Build
    verdict: Verdict
    timing: Timing | None
    score: Score
    gain: Gain | None = None
    """Speedup split into the best rung's and the kernel's part.

    None without a ladder or without a timing against its best rung.
    """
    domain: Domain | None = None
    """Form of the calls that an accepted verdict covers; None if the attempt was rejected."""

    @property
    def contract(self) -> str:
        """One line: the baselines' settings and the errors of reference, best rung and
        candidate.
        """
        if self.gain is None:
            return self.verdict.contract()
        return self.verdict.contract(self.gain.rung, self.gain.error)

    @property
    def standing(self) -> Standing | None:
        """Result against eager: faster, slower or inconclusive; None if rejected or not timed."""
        ratio = self.timing.ratios.get(EAGER) if self.timing is not None else None
        return ratio.standing if ratio is not None and self.verdict.accepted else None

    @property
    def is_faster(self) -> bool:
        """True if the attempt is accepted and certainly faster than eager."""
        return self.standing is Standing.FASTER

    @property
    def slower_than(self) -> str:
        """Name of a baseline that is certainly faster than the attempt: eager, else the best rung.

        "" if neither is. Without a ladder torch.compile is used as the best rung.
        """
        ratios = self.timing.ratios if self.timing is not None else {}
        names = (EAGER, self.gain.rung if self.gain is not None else COMPILE)
        slower = (n for n in names if n in ratios and ratios[n].standing is Standing.SLOWER)
        return next(slower, "")

    @property
    def loses_to_eager(self) -> bool:
        """True if eager is surely or very likely faster than the attempt (see `loses_to`)."""
        ratio = self.timing.ratios.get(EAGER) if self.timing is not None else None
        return ratio is not None and (
            ratio.standing is Standing.SLOWER or _very_likely_slower(ratio)
        )

    @property
    def loses_to(self) -> str:
        """Name of a baseline that is surely or very likely faster: eager, else the best rung.

        "Very likely": the geometric mean of the ratio and its upper limit is below 1 - MARGIN. Such
        an attempt is not timed for the record. So a gain may be missed, but none is claimed
        wrongly. "" if no baseline is faster.
        """
        ratios = self.timing.ratios if self.timing is not None else {}
        names = (EAGER, self.gain.rung if self.gain is not None else COMPILE)
        found = ((name, ratios[name]) for name in names if name in ratios)
        likely = (name for name, r in found if _very_likely_slower(r))
        return self.slower_than or next(likely, "")

    def exceeds(self, other: Judgement) -> bool:
        """Return True if this attempt is certainly faster than the attempt of `other`.

        The lower limit of its speedup over eager must be above the speedup of `other`. An attempt
        that was not timed exceeds none, and every timed one exceeds it.
        """
        both = [j.timing.ratios.get(EAGER) if j.timing else None for j in (self, other)]
        ours, theirs = both
        return ours is not None and (theirs is None or ours.low > theirs.value)

    @property
    def rank(self) -> tuple[int, bool, float]:
        """Sort key of attempts, larger is better: the reward first, then the smallest lower limit.

        An attempt that is certainly slower than a baseline ranks below one that is undecided,
        although its interval may be narrower. Where the lower limit is below 1, its geometric mean
        with the ratio decides: else the narrower interval of a slower attempt would win.
        """
        ratios = list(self.timing.ratios.values()) if self.timing else []
        loses = any(ratio.standing is Standing.SLOWER for ratio in ratios)
        return self.score.reward, not loses, min(map(_cautious, ratios), default=0.0)

    @property
    def beats_best_rung(self) -> bool:
        """True if the attempt is accepted and certainly faster than the best rung.

        Without a ladder it is compared with eager. An attempt that very likely is slower than
        another baseline does not count: that baseline may be the best rung, undecided on a busy
        machine.
        """
        if self.timing is None or self.timing.suspect:
            return False
        if any(map(_very_likely_slower, self.timing.ratios.values())):
            return False
        return self.is_faster and (
            self.gain is None or self.gain.kernel.standing is Standing.FASTER
        )


def _cautious(ratio: Ratio) -> float:
    """Return the lower limit of a ratio. Below 1 return a number from 0 to 1 that grows with the
    geometric mean of that limit and the ratio."""
    if ratio.low >= 1:
        return ratio.low
    mean = math.sqrt(ratio.low * ratio.value)
    return mean / (1 + mean)


def _very_likely_slower(ratio: Ratio) -> bool:
    return math.sqrt(ratio.value * ratio.high) < 1 - MARGIN


class Result(StrEnum):
    """Kind of result that a run gives to its user."""

    KERNEL = "kernel"
    """An attempt that is certainly faster than the best rung (`kernels_only`: than eager)."""
    RUNG = "rung"
    """The best rung of the ladder; no kernel is faster."""
    MODULE = "module"
    """The unchanged module; no attempt and no rung is faster."""


def result_of(
    best: Judgement | None, found: Ladder | None, *, kernels_only: bool = False
) -> Result:
    """Return the kind of a run's result.

    `best` is the judgement of the best attempt (None without one), `found` the ladder (None if it
    was not measured). With `kernels_only` no rung can be the result, so an attempt is the result if
    it is certainly faster than eager.
    """
    if kernels_only:
        timing = best.timing if best is not None and best.is_faster else None
        return Result.KERNEL if timing is not None and not timing.suspect else Result.MODULE
    if best is not None and best.beats_best_rung:
        return Result.KERNEL
    free = free_of(best, found)
    return Result.RUNG if free and free.standing is Standing.FASTER else Result.MODULE


def free_of(best: Judgement | None, found: Ladder | None) -> Ratio | None:
    """Return eager's time over that of the rung to use (`Ladder.chosen`); None if it is eager or no
    ladder was measured.

    The ratio from the best attempt's timing is used if it has the effort of the ladder's, else the
    ladder's ratio. Of two quick timings an inconclusive one does not replace a conclusive one.
    """
    rung = found.chosen if found is not None else None
    if rung is None or rung.name == EAGER:
        return None
    gain = best.gain if best is not None else None
    timing = best.timing if best is not None else None
    if gain is None or timing is None or gain.rung != rung.name:
        return rung.over_eager
    quick = timing.effort is Effort.QUICK
    if timing.effort is not rung.effort or (quick and gain.free.standing is Standing.INCONCLUSIVE):
        return rung.over_eager
    return gain.free
