"""Tensors in pieces cover every element once, and comparisons in pieces find what whole ones do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from cuagent import pieces as module
from cuagent.bench.examine import passes
from cuagent.bench.traced_operators import unchanged
from cuagent.pieces import pieces
from cuagent.verify.fitness.examine import distance

if TYPE_CHECKING:
    from torch import Tensor


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST", 10)
    monkeypatch.setattr(module, "LATER", 50)


@pytest.mark.parametrize("shape", [(), (0,), (7,), (301,), (3, 100), (100, 3), (5, 7, 11)])
def test_pieces_cover_every_element_once(shape: tuple[int, ...]) -> None:
    whole = torch.zeros(shape)
    found = list(pieces(whole, torch.ones(shape)))
    for zeros, ones in found:
        zeros += ones
    assert torch.equal(whole, torch.ones(shape))
    if whole.numel() > 100:
        assert len(found) > 2


def one_changed(place: int) -> tuple[Tensor, Tensor]:
    whole = torch.linspace(1, 4, 300).reshape(3, 100)
    other = whole.clone()
    other.view(-1)[place] += 1
    return whole, other


@pytest.mark.parametrize("place", [0, 9, 10, 99, 100, 299])
def test_one_changed_element_is_found_at_every_place(place: int) -> None:
    whole, other = one_changed(place)
    assert distance(whole, other) == pytest.approx(0.25)
    assert distance(whole, whole) == 0
    assert not passes([other], [whole])
    assert passes([whole.clone()], [whole])
    assert not unchanged([other], [whole])
    assert unchanged([whole + 1e-6], [whole])


def test_distance_is_relative_to_the_largest_value_of_all_pieces() -> None:
    whole = torch.ones(300)
    whole[-1] = 100
    other = whole.clone()
    other[0] = 2
    assert distance(whole, other) == pytest.approx(0.01)


def test_elements_that_are_not_finite_are_compared_by_place_only() -> None:
    whole = torch.ones(300)
    whole[5] = torch.inf
    other = whole.clone()
    other[5] = torch.nan
    assert distance(whole, other) == 0
    other[6] = torch.nan
    assert distance(whole, other) == float("inf")
    assert not unchanged([other], [whole])
    nothing = torch.full((300,), torch.nan)
    assert distance(nothing, nothing) == 0
