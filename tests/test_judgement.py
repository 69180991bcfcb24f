"""Test which attempts are not timed with record effort, because they are slower than a baseline."""

from __future__ import annotations

from typing import Any

import pytest

from cuagent.arms import COMPILE, EAGER
from cuagent.judgement import Judgement, Result, free_of, result_of
from cuagent.measure.rungs import Gain, Ladder, Rung
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


def of(*ratios: Ratio) -> Judgement:
    """An accepted attempt without a sure gain, with its ratios over eager and torch.compile."""
    accepted: Any = type("Accepted", (), {"accepted": True})()
    right: Any = type("Right", (), {"reward": 1})()
    named = dict(zip((EAGER, COMPILE), ratios, strict=False))
    timing = Timing((), named, Effort.QUICK, "cpu", 1.0)
    return Judgement("digest", ANY, accepted, timing, right)


def test_undecided_attempt_ranks_above_one_that_is_surely_slower() -> None:
    """On a busy machine the undecided attempt's interval is wide, so its lower limit is below that
    of the slower one."""
    slower, undecided = of(Ratio(0.3, 0.2, 0.45)), of(Ratio(1.09, 0.09, 12.9))
    assert undecided.rank > slower.rank
    assert of(Ratio(0.97, 0.9, 1.05)).rank > undecided.rank


def test_a_slower_attempt_does_not_rank_first_because_its_interval_is_narrower() -> None:
    """Record timings of two attempts of one run on a busy machine; none is surely faster."""
    earlier = of(Ratio(1.40, 0.68, 2.88), Ratio(1.07, 0.49, 2.33))
    later = of(Ratio(0.89, 0.56, 1.41), Ratio(0.94, 0.60, 1.46))
    assert earlier.rank > later.rank
    assert of(Ratio(1.02, 1.01, 1.03)).rank > of(Ratio(1.90, 0.99, 3.6)).rank, "surely not slower"
    assert of(Ratio(6.3, 0.82, 49)).rank > of(Ratio(4.3, 0.97, 19)).rank
    assert of(Ratio(1.5, 1.4, 1.6)).rank > of(Ratio(1.9, 1.3, 2.8)).rank, "by the lower limit"


def test_a_baseline_that_surely_is_faster_is_named_first() -> None:
    likely, sure = Ratio(0.62, 0.35, 1.10), Ratio(0.5, 0.4, 0.6)
    assert judged(likely, sure).loses_to == COMPILE


def test_undecided_quick_timing_does_not_replace_the_ladders() -> None:
    """A busy moment made "nothing beats your module" of a rung that was surely faster."""
    sure, unsure = Ratio(7.5, 4.6, 12.3), Ratio(3.3, 0.2, 55.0)
    eager, compiled = (
        Rung(name, seconds, over, 1e-7, True, 1.0, None, True)
        for name, seconds, over in ((EAGER, 1e-2, Ratio(1.0, 1.0, 1.0)), (COMPILE, 1.4e-3, sure))
    )
    found = Ladder("t", "match", "cpu", {}, (eager, compiled), 1.0)
    accepted: Any = type("Accepted", (), {"accepted": True})()
    right: Any = type("Right", (), {"reward": 1})()
    timing = Timing((), {EAGER: unsure, COMPILE: unsure}, Effort.QUICK, "cpu", 1.0)
    gain = Gain(COMPILE, free=unsure, kernel=unsure, end_to_end=unsure, over_compile=unsure)
    attempt = Judgement("digest", ANY, accepted, timing, right, gain)
    assert found.best is compiled
    assert free_of(attempt, found) == sure
    assert result_of(attempt, found) is Result.RUNG


def test_an_attempt_that_likely_loses_to_an_undecided_rung_is_no_result() -> None:
    """`best: attempt 1` stood above a kernel at 0.44x of torch.compile on a busy machine."""
    accepted: Any = type("Accepted", (), {"accepted": True})()
    right: Any = type("Right", (), {"reward": 2})()
    over_eager = Ratio(1.31, 1.12, 1.54)
    for over_compile, wins in ((Ratio(0.44, 0.17, 1.11), False), (Ratio(1.3, 0.3, 6.8), True)):
        ratios = {EAGER: over_eager, COMPILE: over_compile}
        timing = Timing((), ratios, Effort.RECORD, "cpu", 1.0)
        gain = Gain(EAGER, Ratio(1.0, 1.0, 1.0), over_eager, over_eager, over_compile)
        attempt = Judgement("digest", ANY, accepted, timing, right, gain)
        assert attempt.beats_best_rung is wins
