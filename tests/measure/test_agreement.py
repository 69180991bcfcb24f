"""Which timed outputs the strict rule is asked about: what is further off than what passed it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from cuagent.measure.timing.agreement import Agreement, distances
from cuagent.verdict import RuleResult

RIGHT = [[torch.arange(8.0)], [torch.arange(8.0) + 1]]


class Judge:
    """Passes errors up to `limit`; remembers what it was asked about."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.asked: list[int] = []

    def __call__(self, slot: int, outputs: Sequence[Tensor]) -> RuleResult:
        self.asked.append(slot)
        worst = float((outputs[0] - RIGHT[slot][0]).abs().nan_to_num(nan=9).max())
        return RuleResult(worst <= self.limit, worst, "too far off")


def off(by: float) -> list[list[Tensor]]:
    return [[tensor + by for tensor in call] for call in RIGHT]


def test_what_equals_eager_needs_no_judging_but_by_chance() -> None:
    judge = Judge(0.0)
    assert Agreement(judge).wrong([0, 1], RIGHT, RIGHT, 0) == ""
    assert not judge.asked
    Agreement(judge).wrong([0, 1], RIGHT, RIGHT, 1)
    assert len(judge.asked) == 1


def test_an_error_of_a_size_that_passed_is_asked_about_once() -> None:
    judge = Judge(1e-3)
    agreement = Agreement(judge)
    for _ in range(3):
        assert agreement.wrong([0, 1], off(1e-4), RIGHT, 0) == ""
    assert judge.asked == [0]
    agreement.wrong([0, 1], off(5e-4), RIGHT, 0)
    assert judge.asked == [0, 0]


@pytest.mark.parametrize("wrong", [1e-2, float("nan"), float("inf")])
def test_one_element_that_is_further_off_is_found(wrong: float) -> None:
    agreement = Agreement(Judge(1e-3))
    assert agreement.wrong([0, 1], off(1e-4), RIGHT, 0) == ""
    given = off(1e-4)
    given[1][0][3] += wrong
    assert "call 2 of 2 was wrong: too far off" in agreement.wrong([0, 1], given, RIGHT, 0)


def test_without_eager_calls_are_judged_at_random_only() -> None:
    judge = Judge(1e-3)
    assert "wrong" in Agreement(judge).wrong([0, 1], off(1), None, 1)
    assert Agreement(judge).wrong([0, 1], off(1), None, 0) == ""


def test_integers_and_places_without_a_number_are_counted() -> None:
    (found,) = distances([torch.tensor([1, 2, 3])], [torch.tensor([1, 0, 0])])
    assert (found.unequal, found.most) == (2, 0)
    infinite = torch.tensor([float("inf"), float("nan"), 1.0])
    (found,) = distances([infinite], [infinite.clone()])
    assert (found.unequal, found.most) == (0, 0)
