"""Outcomes timed before torch.compile had opened are compared with later ones fairly."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cuagent.expert.search.outcomes import Outcome, best_of, link
from cuagent.timing import Ratio


def outcome(attempt: int, **ratios: float) -> Outcome:
    candidate: Any = SimpleNamespace()
    found = {name: Ratio(value, 0.99 * value, 1.01 * value) for name, value in ratios.items()}
    return Outcome(candidate, True, "", attempt, found)


def test_an_attempt_without_a_late_baseline_does_not_look_better() -> None:
    outcomes = [outcome(1, eager=4.0), outcome(2, eager=5.0, compile=1.5)]
    link(outcomes)
    first, second = outcomes
    assert first.compared["compile"].value == pytest.approx(1.2)
    assert 1.15 < first.compared["compile"].low < 1.2 < first.compared["compile"].high < 1.25
    assert "compile" not in first.ratios, "texts show measured ratios only"
    assert second.compared == second.ratios
    assert best_of(outcomes) is second
    assert first.is_clear_gain


def test_a_candidate_that_loses_to_torch_compile_is_no_gain() -> None:
    outcomes = [outcome(1, eager=2.0)]
    link(outcomes)
    assert outcomes[0].is_clear_gain
    outcomes.append(outcome(2, eager=1.0, compile=0.25))
    link(outcomes)
    assert not outcomes[0].is_likely_gain
    assert outcomes[0].is_slower_than("compile")


def test_equal_baselines_and_untimed_outcomes_stay_as_they_are() -> None:
    outcomes = [outcome(1, eager=2.0, compile=1.0), outcome(2), outcome(3, eager=1.0, compile=1.0)]
    before = list(outcomes)
    link(outcomes)
    assert outcomes == before
