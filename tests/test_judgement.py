"""Test which attempts are not timed with record effort, because they are slower than a baseline."""

from __future__ import annotations

from typing import Any

import pytest

from cuagent.arms import COMPILE, EAGER
from cuagent.judgement import Judgement
from cuagent.timing import Effort, Ratio, Timing

ANY: Any = None


def judged(over_eager: Ratio, over_compile: Ratio) -> Judgement:
    ratios = {EAGER: over_eager, COMPILE: over_compile}
    return Judgement("digest", ANY, ANY, Timing((), ratios, Effort.QUICK, "cpu", 1.0), ANY)


GAIN = Ratio(2.0, 1.5, 2.6)


@pytest.mark.parametrize(
    ("ratio", "surely", "likely"),
    [
        (Ratio(0.62, 0.55, 0.70), True, True),
        (Ratio(0.62, 0.35, 1.10), False, True),
        (Ratio(0.62, 0.18, 2.10), False, False),
        (Ratio(0.97, 0.90, 1.05), False, False),
        (Ratio(1.30, 0.60, 2.80), False, False),
    ],
)
def test_an_attempt_with_no_likely_gain_loses(ratio: Ratio, surely: bool, likely: bool) -> None:
    both = judged(ratio, GAIN), judged(GAIN, ratio)
    assert [bool(found.slower_than) for found in both] == [surely, surely]
    assert [found.loses_to for found in both] == [EAGER * likely, COMPILE * likely]


def test_undecided_attempt_ranks_above_one_that_is_surely_slower() -> None:
    """On a busy machine the undecided attempt's interval is wide, so its lower limit is below that
    of the slower one."""
    accepted: Any = type("Accepted", (), {"accepted": True})()
    right: Any = type("Right", (), {"reward": 1})()

    def of(ratio: Ratio) -> Judgement:
        timing = Timing((), {EAGER: ratio}, Effort.QUICK, "cpu", 1.0)
        return Judgement("digest", ANY, accepted, timing, right)

    slower, undecided = of(Ratio(0.3, 0.2, 0.45)), of(Ratio(1.09, 0.09, 12.9))
    assert undecided.rank > slower.rank
    assert of(Ratio(0.97, 0.9, 1.05)).rank > undecided.rank


def test_a_baseline_that_surely_is_faster_is_named_first() -> None:
    likely, sure = Ratio(0.62, 0.35, 1.10), Ratio(0.5, 0.4, 0.6)
    assert judged(likely, sure).loses_to == COMPILE
