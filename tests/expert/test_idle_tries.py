"""The search ends sooner if judging a candidate takes long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cuagent.expert.search.outcomes import Outcome
from cuagent.expert.search.planner import _is_idle
from cuagent.timing import Ratio


def tried(speedup: float, judged_s: float) -> Outcome:
    candidate: Any = None
    ratio = Ratio(speedup, speedup - 0.01, speedup + 0.01)
    return Outcome(candidate, True, "", 1, {"compile": ratio}, judged_s=judged_s)


class Gpu:
    device = "cuda"


@pytest.mark.parametrize(
    ("judged_s", "idle_after"), [(0.0, 2), (8.0, 2), (14.0, 1), (20.0, 1), (24.0, 0)]
)
def test_number_of_tries_without_a_gain_follows_from_their_seconds(
    judged_s: float, idle_after: int
) -> None:
    subject: Any = Gpu()
    outcomes = [tried(1.5, judged_s)]
    for tries in range(3):
        assert _is_idle(subject, outcomes) is (tries >= idle_after), tries
        outcomes.append(tried(1.4, judged_s))


def test_long_judging_does_not_end_a_search_without_a_clear_gain() -> None:
    subject: Any = Gpu()
    assert not _is_idle(subject, [tried(0.9, 60.0), tried(0.8, 60.0)])
    refused = replace(tried(1.5, 60.0), accepted=False)
    assert not _is_idle(subject, [refused])
