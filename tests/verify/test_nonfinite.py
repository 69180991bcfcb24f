"""Draws with NaN and infinities: differences that fail, and differences that are only reported."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.rules.nonfinite import (
    all_misplaced,
    finite_only,
    misplaced,
    nonfinite_differences,
    numbers_only,
)
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected
from cuagent.verify.trace.reductions import Terms

RIGHT = torch.tensor([[1.0, 2.0, 3.0], [math.nan, math.inf, 4.0]])
PLACES = torch.tensor([2, 0])


def expected() -> Expected:
    spread = [torch.full((2, 3), math.nan).double(), torch.zeros(2).long()]
    spread[0][0] = 1e-8
    return Expected([RIGHT, PLACES], [RIGHT.double(), PLACES], spread)


def passes(output: torch.Tensor, places: torch.Tensor = PLACES) -> bool:
    return strict([output, places], expected(), Inputs.NAN, Terms.of(1)).passed


def test_wrong_finite_element_fails() -> None:
    for place in ((0, 1), (1, 2)):
        output = RIGHT.clone()
        output[place] += 1
        assert not passes(output)


def test_differences_in_nan_and_inf_are_reported_but_pass() -> None:
    output = RIGHT.clone()
    assert passes(output)
    assert not nonfinite_differences([output, PLACES], expected())
    output[0, 0], output[1, 0], output[1, 1] = math.inf, 0.0, math.nan
    assert passes(output, PLACES + 1)
    found = nonfinite_differences([output, PLACES + 1], expected())
    assert (found.lost, found.gained, found.other, found.total) == (1, 1, 3, 8)
    assert "5 of 8 elements" in str(found)


NAN, INF = math.nan, math.inf


def block(*rows: tuple[float, ...]) -> list[torch.Tensor]:
    """Return candidate, reference and fp64 reference, with one element for each row."""
    x, r, y = zip(*rows, strict=True)
    return [torch.tensor(x), torch.tensor(r), torch.tensor(y, dtype=torch.float64)]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ((1.0, 1.0, 1.0), "numbers"),
        ((5.0, 1.0, 1.0), "numbers"),
        ((NAN, 1.0, 1.0), "gained"),
        ((INF, 1.0, 1.0), "gained"),
        ((1.0, NAN, NAN), "lost"),
        ((1.0, INF, INF), "lost"),
        ((1.0, INF, 1e39), "undecided"),
        ((1.0, 1.0, INF), "undecided"),
        ((INF, INF, 1e39), "same"),
        ((INF, 1e38, INF), "same"),
        ((NAN, NAN, 1.0), "same"),
        ((NAN, 1.0, NAN), "same"),
        ((NAN, INF, INF), "other"),
        ((-INF, INF, INF), "other"),
        ((INF, NAN, NAN), "other"),
        ((NAN, INF, 1e39), "other"),
    ],
)
def test_every_combination_of_nan_and_inf_is_classified(
    row: tuple[float, float, float], kind: str
) -> None:
    x, r, y = block(row)
    found = nonfinite_differences([x], Expected([r], [y], [torch.zeros_like(y)]))
    assert (found.lost, found.gained, found.other, found.total) == (
        int(kind == "lost"),
        int(kind == "gained"),
        int(kind == "other"),
        1,
    )
    assert bool(found) is (kind in ("lost", "gained", "other"))
    mask = misplaced([x, r, y])
    assert (mask is not None) is bool(found)
    if found:
        assert "1 of 1 elements" in str(found)
    kept = finite_only([x, r, y])
    assert all(tensor.numel() == (kind == "numbers") for tensor in kept)


def test_only_finite_elements_are_compared_as_numbers() -> None:
    values = (1.0, NAN, INF)
    rows = list(product(values, values, values))
    x, r, y = block(*rows)
    spread = torch.where(torch.arange(len(rows)) % 2 == 0, torch.tensor(NAN), torch.tensor(0.5))
    moved = torch.arange(len(rows)).double()
    given, declared, precise, s, kept = numbers_only([x, r, y, spread, moved], paired=False)
    at = rows.index((1.0, 1.0, 1.0))
    assert [given.tolist(), declared.tolist(), precise.tolist()] == [[1.0]] * 3
    assert (s.tolist(), kept.tolist()) == ([0.0], [float(at)])
    assert {t.dtype for t in (given, declared, precise, s, kept)} == {torch.float64}


def test_half_of_a_complex_number_that_is_nan_removes_both() -> None:
    x = torch.tensor([1.0, NAN, 3.0, 4.0, 5.0, 6.0])
    good = torch.arange(6.0)
    assert numbers_only([x, good, good, good], paired=True)[0].tolist() == [3, 4, 5, 6]
    assert numbers_only([x, good, good, good], paired=False)[0].tolist() == [1, 3, 4, 5, 6]


def test_misplaced_elements_are_counted_by_complex_number() -> None:
    x = torch.tensor([1.0, NAN, 3.0, 4.0])
    good = torch.ones(4)
    blocks = [[x, good, good.double()], [good, good, good.double()]]
    real, pairs = torch.zeros(8), torch.zeros(4, dtype=torch.complex64)
    assert all_misplaced(blocks, real).tolist() == [False, True] + [False] * 6
    assert all_misplaced(blocks, pairs).tolist() == [True, False, False, False]


@pytest.mark.parametrize("kind", [Inputs.INFINITE, Inputs.OWN])
def test_number_that_only_fp64_represents_is_no_truth(kind: Inputs) -> None:
    """`nan_to_num` gives the largest number of its dtype; a mean of 64 numbers divides it."""
    declared = torch.tensor([[0.5, 1.0], [torch.finfo(torch.float32).max / 64, 2.0]])
    precise = declared.double()
    precise[1, 0] = torch.finfo(torch.float64).max / 64
    right = Expected([declared], [precise], [torch.full((2, 2), 1e-8).double()])
    assert strict([declared], right, kind, Terms.of(64)).passed
    wrong = declared.clone()
    wrong[1, 0] *= 1.01
    assert not strict([wrong], right, kind, Terms.of(64)).passed
