"""Compute the milestone reward of CUDA Agent (arXiv 2602.24286, equation 1), with the plain ratios.

`b(t, t0) = (t0 - t) / t0 > 5 %`; -1 wrong, 1 right, 2 if b holds against eager, 3 if it holds
against eager and torch.compile. Beating torch.compile alone stays at 1, as in the paper. This
module does not decide if a ratio is significant: pass the lower confidence limits to be strict.
"""

from __future__ import annotations

from dataclasses import dataclass

MARGIN = 0.05
"""Share of the baseline's time that an attempt must save to reach a milestone (the paper's 5 %)."""


@dataclass(frozen=True)
class Score:
    """Reward in {-1, 1, 2, 3}. Ratios are baseline over candidate time, None if unmeasured."""

    reward: int
    over_eager: float | None = None
    over_compile: float | None = None


def milestone(
    accepted: bool, over_eager: float | None = None, over_compile: float | None = None
) -> Score:
    """Score one judged attempt from its verdict and its speed ratios."""
    if not accepted:
        return Score(-1)
    reward = 1
    if _clearly_faster(over_eager):
        reward = 3 if _clearly_faster(over_compile) else 2
    return Score(reward, over_eager, over_compile)


def _clearly_faster(ratio: float | None) -> bool:
    # (t0 - t) / t0 > 0.05  <=>  1 - 1/ratio > 0.05
    return ratio is not None and ratio > 0 and 1 - 1 / ratio > MARGIN
