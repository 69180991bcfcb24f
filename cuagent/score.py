"""Compute the milestone reward of CUDA Agent (arXiv 2602.24286, equation 1).

With `b(t, t0) = (t0 - t) / t0 > 5 %`: -1 for a wrong attempt, 1 for a right one, 2 if b is true
against eager, 3 if it is true against eager and torch.compile. Beating torch.compile alone stays at
1, as in the paper. `milestone` does not decide if a ratio is significant; `score_of` passes the
lower confidence limits.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuagent.arms import COMPILE, EAGER
from cuagent.timing import Timing
from cuagent.verdict import Verdict

MARGIN = 0.05
"""Share of the baseline's time that an attempt must save to reach a milestone (the paper's 5 %)."""


@dataclass(frozen=True)
class Score:
    """Reward of an attempt (-1, 1, 2 or 3), with its speedups: baseline's time over candidate's
    time.

    A speedup is None if it was not measured.
    """

    reward: int
    over_eager: float | None = None
    over_compile: float | None = None


def milestone(
    accepted: bool, over_eager: float | None = None, over_compile: float | None = None
) -> Score:
    """Return the score of an attempt from its verdict and its speedups over eager and
    torch.compile.
    """
    if not accepted:
        return Score(-1)
    reward = 1
    if _clearly_faster(over_eager):
        reward = 3 if _clearly_faster(over_compile) else 2
    return Score(reward, over_eager, over_compile)


def _clearly_faster(ratio: float | None) -> bool:
    # (t0 - t) / t0 > 0.05  <=>  1 - 1/ratio > 0.05
    return ratio is not None and ratio > 0 and 1 - 1 / ratio > MARGIN


def score_of(verdict: Verdict, timing: Timing | None) -> Score:
    """Return the score; the reward uses the ratios' lower limits, so uncertain gains get none."""
    if timing is None or not verdict.accepted or timing.suspect:
        return milestone(verdict.accepted)
    values = [r.value if r else None for r in map(timing.ratios.get, (EAGER, COMPILE))]
    limits = [r.low if r else None for r in map(timing.ratios.get, (EAGER, COMPILE))]
    return Score(milestone(True, *limits).reward, *values)
