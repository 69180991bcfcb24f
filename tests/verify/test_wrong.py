"""Descriptions of wrong elements: which, how many, where, and how their values are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected
from cuagent.verify.rules.wrong import HINTS, MOST, _some, describe
from cuagent.verify.trace.reductions import Terms

SHAPE = (6, 10, 64)


def expected() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(SHAPE, generator=generator, dtype=torch.float64)


def said(got: Tensor, right: Tensor) -> tuple[str, str]:
    wrong = got != right
    told = describe(0, got, right, wrong, int(wrong.reshape(-1).byte().argmax()))
    return told.note, told.hint


def garbled(x: Tensor) -> None:
    """Change each element by a different amount, in place."""
    x += torch.linspace(1, 7, x.numel(), dtype=x.dtype).view(x.shape).sin() * 3


PLACES: list[tuple[Callable[[Tensor], Tensor], str, str]] = [
    (lambda x: x[..., 60:], "all in the last 4 of 64 along dimension 2", "tail"),
    (lambda x: x[5], "all at index 5 of 6 in dimension 0", "tail"),
    (lambda x: x[:, 3], "all at index 3 of 10 in dimension 1", "one"),
    (lambda x: x[:, :2], "all in the first 2 of 10 along dimension 1", "head"),
    (lambda x: x[..., 1::4], "all at 1 modulo 4 along dimension 2", "step"),
    (lambda x: x[2:5, 9], "all at index 9 of 10 in dimension 1 and at 2 to 4 of 6", "tail"),
    (lambda x: x, "100 % of the elements are wrong (3,840 of 3,840)", "all"),
]


@pytest.mark.parametrize(("part", "words", "hint"), PLACES)
def test_hint_follows_the_positions_of_wrong_elements(
    part: Callable[[Tensor], Tensor], words: str, hint: str
) -> None:
    got, right = expected(), expected()
    garbled(part(got))
    note, told = said(got, right)
    assert words in note
    assert told == HINTS[hint]


def test_scattered_elements_are_described() -> None:
    got, right = expected(), expected()
    garbled(got.view(-1)[torch.randperm(got.numel())[:300].sort().values])
    picked = torch.zeros(got.numel(), dtype=torch.bool)
    picked[torch.randperm(got.numel(), generator=torch.Generator().manual_seed(1))[:300]] = True
    got = torch.where(picked.view(SHAPE), got + torch.randn(SHAPE, dtype=got.dtype), right)
    note, told = said(got, right)
    assert "7.81 % of the elements are wrong (300 of 3,840), scattered" in note
    assert told == HINTS["some"]


VALUES: list[tuple[Callable[[Tensor], Tensor], str]] = [
    (lambda y: -y, "sign"),
    (lambda y: y * 64, "factor"),
    (lambda y: y + 0.25, "offset"),
    (lambda y: y * 0, "zero"),
    (lambda y: y * math.nan, "nan"),
    (lambda y: y * 0 + 2, "same"),
    (lambda y: y.transpose(1, 2).reshape(SHAPE), "order"),
]


@pytest.mark.parametrize(("change", "hint"), VALUES)
def test_relation_of_values_precedes_positions_in_the_hint(
    change: Callable[[Tensor], Tensor], hint: str
) -> None:
    assert said(change(expected()), expected())[1] == HINTS[hint]


def test_zeros_at_the_end_hint_at_a_loop_that_stops_early() -> None:
    got = expected()
    got[..., 60:] = 0
    assert said(got, expected())[1] == f"they are 0; {HINTS['tail']}"


def test_values_have_enough_digits_to_differ() -> None:
    right = torch.full((3,), 0.1, dtype=torch.float64)
    got = right.clone()
    got[2] += 1e-8
    note, _ = said(got, right)
    assert note.startswith("output 0, element (2,) of shape (3,): got 0.10000001, expected 0.1;")


def test_scalar_output_is_described() -> None:
    note, hint = said(torch.tensor(2.0), torch.tensor(-2.0))
    assert note == "output 0, a scalar: got 2, expected -2"
    assert hint == HINTS["sign"]


def test_scalar_without_a_relation_has_no_hint() -> None:
    assert said(torch.tensor(3.0), torch.tensor(1.0))[1] == ""


def test_one_wrong_element_has_its_index_and_share_and_no_other_place() -> None:
    got = expected()
    got[5, 9, 63] += 1
    note, hint = said(got, expected())
    assert note.startswith("output 0, element (5, 9, 63) of shape (6, 10, 64): ")
    assert note.endswith("0.026 % of the elements are wrong (1 of 3,840)")
    assert hint == HINTS["tail"]
    got[5, 9, 62] += 2
    note, _ = said(got, expected())
    assert note.endswith(
        "(2 of 3,840), all in the last 2 of 64 along dimension 2 "
        "and at index 9 of 10 in dimension 1"
    )


def test_two_elements_have_a_share() -> None:
    note, _ = said(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 2.0]))
    assert "50 % of the elements are wrong (1 of 2)" in note


@pytest.mark.parametrize(("count", "hint"), [(2, ""), (3, HINTS["factor"])])
def test_a_factor_needs_three_wrong_elements(count: int, hint: str) -> None:
    right = torch.tensor([0.5, 0.7, 1.1, 1.3])
    got = right.clone()
    got[:count] *= 4
    told = said(got, right)[1]
    assert told == (f"they are off by one factor; {HINTS['head']}" if hint else HINTS["head"])


def test_few_wrong_elements_of_a_large_output_are_found() -> None:
    right = torch.ones(3, 1 << 17, dtype=torch.float64)
    got = right.clone()
    got[1, 1001:1007] = 0
    note, hint = said(got, right)
    assert "(6 of 393,216), all at 1001 to 1006 of 131072 along dimension 1" in note
    assert hint == f"they are 0; {HINTS['one']}"


def test_rule_names_the_element_in_complex_nan_and_integer_outputs() -> None:
    y = torch.randn(4, 8, dtype=torch.complex128)
    known = Expected([y.to(torch.complex64)], [y], [torch.zeros_like(y)])
    output = y.to(torch.complex64)
    output[2, 5] += 1j
    found = strict([output], known, Inputs.OWN, Terms.of(1))
    assert "element (2, 5) of shape (4, 8): got " in found.note
    y = torch.randn(4, 8, dtype=torch.float64)
    y[0, 0], y[1] = math.nan, math.inf
    known = Expected([y.float()], [y], [torch.zeros_like(y)])
    output = y.float()
    output[2, 5] = -output[2, 5] + 1
    assert "element (2, 5)" in strict([output], known, Inputs.OWN, Terms.of(1)).note
    output[1, 7] = 3.0
    found = strict([output], known, Inputs.OWN, Terms.of(1))
    assert "element (1, 7) of shape (4, 8): got 3, expected inf" in found.note
    y = torch.arange(6).view(2, 3)
    known = Expected([y], [y], [torch.zeros_like(y)])
    found = strict([y.flip(1)], known, Inputs.OWN, Terms.of(1))
    assert "element (0, 0) of shape (2, 3): got 2, expected 0" in found.note
    assert found.hint


@pytest.mark.parametrize("value", [1.0, math.nan])
def test_refusal_without_explanation_has_no_note(value: float) -> None:
    y = torch.zeros(4, 8, dtype=torch.float64)
    known = Expected([y.float()], [y], [torch.zeros_like(y)])
    output = torch.full((), value).expand(4, 8)
    found = strict([output], known, Inputs.OWN, Terms.of(1), explain=False)
    assert (found.passed, found.note, found.hint) == (False, "", "")


@pytest.mark.parametrize("count", [1, MOST, MOST + 1, 3 * MOST])
def test_relations_are_sought_among_a_bounded_number_of_elements(count: int) -> None:
    wrong = torch.zeros(4 * MOST, dtype=torch.bool)
    wrong[:count] = True
    at = _some(wrong)
    assert MOST // 2 <= at.numel() <= MOST if count > 1 else at.tolist() == [0]
    assert bool(wrong[at].all())
