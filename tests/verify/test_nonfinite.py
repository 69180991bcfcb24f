"""Draws with NaN and infinities: differences that fail, and differences that are only reported."""

from __future__ import annotations

import math

import torch

from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.rules.nonfinite import nonfinite_differences
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
