"""Test the milestone reward at its thresholds."""

from __future__ import annotations

import math

import pytest

from cuagent.score import MARGIN, Score, milestone


@pytest.mark.parametrize(
    ("over_eager", "over_compile", "reward"),
    [
        (None, None, 1),
        (1.0, 1.0, 1),
        (1.052, None, 1),  # 1 - 1 / 1.052 = 4.94 %, although 1.052 - 1 exceeds 5 %
        (1.053, None, 2),  # 1 - 1 / 1.053 = 5.03 %
        (1.5, None, 2),
        (1.5, 1.052, 2),
        (1.5, 1.053, 3),
        (1.052, 1.5, 1),  # only torch.compile is beaten
        (None, 1.5, 1),
        (math.inf, math.inf, 3),
    ],
)
def test_reward_needs_five_percent_less_time(
    over_eager: float | None, over_compile: float | None, reward: int
) -> None:
    assert milestone(True, over_eager, over_compile) == Score(reward, over_eager, over_compile)


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan])
def test_ratio_that_is_not_positive_is_not_faster(ratio: float) -> None:
    assert milestone(True, ratio, ratio).reward == 1


def test_rejected_attempt_gets_minus_one_and_no_ratios() -> None:
    assert milestone(False, 9.0, 9.0) == Score(-1, None, None)


def test_margin_is_that_of_the_paper() -> None:
    assert MARGIN == 0.05
