"""Timed outputs that the strict rule judges: those further from eager's than accepted ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from cuagent.measure.timing.agreement import Agreement, Distance, distances
from cuagent.verdict import RuleResult

RIGHT = [[torch.arange(8.0)], [torch.arange(8.0) + 1]]


class Judge:
    """Strict rule that passes errors up to `limit` and records the slots it judged."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.asked: list[int] = []

    def __call__(self, slot: int, outputs: Sequence[Tensor]) -> RuleResult:
        self.asked.append(slot)
        worst = float((outputs[0] - RIGHT[slot][0]).abs().nan_to_num(nan=9).max())
        return RuleResult(worst <= self.limit, worst, "too far off")


def off(by: float) -> list[list[Tensor]]:
    return [[tensor + by for tensor in call] for call in RIGHT]


def test_outputs_equal_to_eager_are_judged_only_by_chance() -> None:
    judge = Judge(0.0)
    assert Agreement(judge).first_wrong([0, 1], RIGHT, RIGHT, 0) == ""
    assert not judge.asked
    Agreement(judge).first_wrong([0, 1], RIGHT, RIGHT, 1)
    assert len(judge.asked) == 1


def test_an_error_of_an_accepted_size_is_judged_once() -> None:
    judge = Judge(1e-3)
    agreement = Agreement(judge)
    for _ in range(3):
        assert agreement.first_wrong([0, 1], off(1e-4), RIGHT, 0) == ""
    assert judge.asked == [0]
    agreement.first_wrong([0, 1], off(5e-4), RIGHT, 0)
    assert judge.asked == [0, 0]


@pytest.mark.parametrize("error", [1e-2, float("nan"), float("inf")])
def test_one_wrong_element_is_found(error: float) -> None:
    agreement = Agreement(Judge(1e-3))
    assert agreement.first_wrong([0, 1], off(1e-4), RIGHT, 0) == ""
    given = off(1e-4)
    given[1][0][3] += error
    assert "call 2 of 2 was wrong: too far off" in agreement.first_wrong([0, 1], given, RIGHT, 0)


def test_without_eager_only_random_calls_are_judged() -> None:
    judge = Judge(1e-3)
    assert "wrong" in Agreement(judge).first_wrong([0, 1], off(1), None, 1)
    assert Agreement(judge).first_wrong([0, 1], off(1), None, 0) == ""


def test_distances_count_unequal_integers_and_nonfinite_elements() -> None:
    (found,) = distances([torch.tensor([1, 2, 3])], [torch.tensor([1, 0, 0])])
    assert (found.unequal, found.most) == (2, 0)
    infinite = torch.tensor([float("inf"), float("nan"), 1.0])
    (found,) = distances([infinite], [infinite.clone()])
    assert (found.unequal, found.most) == (0, 0)


def test_distances_have_rms_and_largest_difference() -> None:
    right = torch.ones(4)
    (found,) = distances([right + torch.tensor([3.0, 0.0, -4.0, 0.0])], [right])
    assert found == Distance(rms=2.5, most=4.0, unequal=0)
    assert distances([torch.empty(0), right], [torch.empty(0), right]) == [Distance(0, 0, 0)] * 2
