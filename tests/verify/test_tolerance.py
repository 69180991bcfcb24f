"""The rules as functions: what they admit, what they refuse, and by which bound."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cuagent.task import Precision
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.rules.tolerance import lax, strict
from cuagent.verify.rules.types import Expected
from cuagent.verify.tensors import UNIT
from cuagent.verify.trace.reductions import Terms, terms


def product(k: int, kind: Inputs = Inputs.NORMAL) -> tuple[torch.Tensor, torch.Tensor, Expected]:
    """Factors of an fp32 product with sums of length k, and what an oracle says about it."""
    generator = torch.Generator().manual_seed(k)
    a, b = (torch.randn(s, generator=generator) for s in ((64, k), (k, 64)))
    if kind is Inputs.INTEGER:
        a, b = (x.round().clamp(-2, 2) for x in (a, b))
    y = a.double() @ b.double()
    total = torch.zeros_like(y)
    for _ in range(8):
        moved = [
            x * (1 + UNIT * torch.randn(x.shape, generator=generator)).double() for x in (a, b)
        ]
        total += (moved[0] @ moved[1] - y).square()
    return a, b, Expected([a @ b], [y], [(total / 8).sqrt()])


def test_a_sequential_sum_is_admitted_and_tf32_and_bf16_are_not() -> None:
    for k in (64, 1024):
        a, b, expected = product(k)
        running = torch.zeros(64, 64)
        for index in range(k):
            running += a[:, index : index + 1] * b[index]
        assert strict([running], expected, Inputs.NORMAL, Terms.of(k)).passed
        tf32 = [(x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b)]
        found = strict([tf32[0] @ tf32[1]], expected, Inputs.NORMAL, Terms.of(k))
        assert not found.passed
        assert found.precision in (Precision.TF32, Precision.BF16)
        assert not strict(
            [(a.bfloat16() @ b.bfloat16()).float()], expected, Inputs.NORMAL, Terms.of(k)
        ).passed


@pytest.mark.parametrize("kind", Inputs)
def test_what_passes_without_the_spread_passes_with_it(kind: Inputs) -> None:
    a, b, expected = product(64, Inputs.INTEGER if kind is Inputs.INTEGER else Inputs.NORMAL)
    without = replace(expected, spread=[torch.zeros_like(s) for s in expected.spread])
    for size in (1e-7, 1e-5, 1e-2):
        output = (a @ b) * (1 + size * torch.randn(64, 64))
        ratios = [strict([output], e, kind, Terms.of(64)).ratio for e in (expected, without)]
        assert ratios[0] <= ratios[1]


def test_what_the_task_admits_is_not_held_against_an_attempt() -> None:
    a, b, expected = product(512)
    coarse = a.bfloat16().float() @ b.bfloat16().float()
    assert not strict([coarse], expected, Inputs.NORMAL, Terms.of(512)).passed
    assert not strict([coarse], expected, Inputs.NORMAL, Terms.of(512), Precision.TF32).passed
    assert strict([coarse], expected, Inputs.NORMAL, Terms.of(512), Precision.BF16).passed


def test_one_bad_element_does_not_hide_in_an_average() -> None:
    a, b, expected = product(256)
    output = a @ b
    output[3, 4] += 0.01
    found = strict([output], expected, Inputs.NORMAL, Terms.of(256))
    assert not found.passed
    assert found.note.startswith("output 0, element (3, 4) of shape (64, 64): got ")
    assert "0.0244 % of the elements are wrong (1 of 4,096)" in found.note
    assert "only one index" in found.hint


def test_either_bound_admits() -> None:
    y = torch.linspace(1, 2, 100, dtype=torch.float64)
    unsteady = Expected([(y + 1e-3).float()], [y], [torch.zeros_like(y)])
    assert strict([(y - 2e-3).float()], unsteady, Inputs.NORMAL, Terms.of(1)).passed
    assert not strict([(y - 4e-3).float()], unsteady, Inputs.NORMAL, Terms.of(1)).passed


def test_on_small_integers_roundoff_is_admitted_and_a_wrong_index_is_not() -> None:
    a, b, expected = product(128, Inputs.INTEGER)
    running = a @ b  # exact
    assert strict([running], expected, Inputs.INTEGER, Terms.of(128)).passed
    rounded = running + 1e-6  # a mean that runs along, a transform with thirds
    assert strict([rounded], expected, Inputs.INTEGER, Terms.of(128)).passed
    wrong = running.clone()
    wrong[0, 0] += 1
    assert not strict([wrong], expected, Inputs.INTEGER, Terms.of(128)).passed


def test_nan_and_inf_must_stand_where_the_reference_has_them() -> None:
    y = torch.tensor([1.0, math.nan, math.inf, -math.inf], dtype=torch.float64)
    expected = Expected([y.float()], [y], [torch.zeros(4, dtype=torch.float64)])
    assert strict([y.float()], expected, Inputs.OWN, Terms.of(1)).passed
    for index, value in ((0, math.nan), (1, 1.0), (2, 3e38), (2, -math.inf), (3, math.nan)):
        output = y.float()
        output[index] = value
        assert not strict([output], expected, Inputs.OWN, Terms.of(1)).passed, (index, value)


def test_integer_outputs_must_be_equal_to_either_reference() -> None:
    declared, precise = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    expected = Expected([declared], [precise], [torch.zeros(3)])
    assert strict([torch.tensor([1, 2, 3])], expected, Inputs.OWN, Terms.of(1)).passed
    assert strict([torch.tensor([1, 2, 4])], expected, Inputs.OWN, Terms.of(1)).passed
    assert not strict([torch.tensor([1, 2, 5])], expected, Inputs.OWN, Terms.of(1)).passed


def test_an_integer_that_hangs_on_a_near_tie_may_differ_but_no_comparison_of_round_numbers() -> (
    None
):
    count, near = torch.tensor([1, 2, 3]), torch.tensor([0, 0, 1])
    expected = Expected([count], [count], [near])
    assert strict([torch.tensor([1, 2, 4])], expected, Inputs.TIES, Terms.of(1)).passed
    assert not strict([torch.tensor([1, 2, 5])], expected, Inputs.TIES, Terms.of(1)).passed
    assert not strict([torch.tensor([0, 2, 3])], expected, Inputs.TIES, Terms.of(1)).passed
    above = torch.tensor([True, False, False])
    expected = Expected([above], [above], [near.bool()])
    assert strict([torch.tensor([True, False, True])], expected, Inputs.NORMAL, Terms.of(1)).passed
    assert not strict(
        [torch.tensor([True, False, True])], expected, Inputs.TIES, Terms.of(1)
    ).passed


def test_a_sequential_sum_of_one_sign_is_admitted() -> None:
    terms = torch.rand(32, 8192, generator=torch.Generator().manual_seed(1))
    y = terms.double().sum(-1)
    spread = UNIT * terms.double().square().sum(-1).sqrt()
    running = torch.zeros(32)
    for index in range(8192):
        running += terms[:, index]
    expected = Expected([terms.sum(-1)], [y], [spread])
    assert strict([running], expected, Inputs.NORMAL, Terms.of(8192)).ratio < 0.5
    assert not strict(
        [terms.bfloat16().sum(-1).float()], expected, Inputs.NORMAL, Terms.of(8192)
    ).passed


def test_a_softmax_whose_factor_is_short_shows_on_any_draw_and_one_summed_in_order_on_none() -> (
    None
):
    """1.4427 for the logarithm of e: what a sum of 512 terms may err, and exponents may not."""
    for seed in range(10):
        x = torch.randn(16, 512, generator=torch.Generator().manual_seed(seed))
        y, total = x.double().softmax(-1), torch.zeros(16, 512, dtype=torch.float64)
        for _ in range(4):
            moved = x.double() * (1 + UNIT * torch.randn_like(x).double())
            total += (moved.softmax(-1) - y).square()
        expected = Expected([x.softmax(-1)], [y], [(total / 4).sqrt()])
        shifted, running = x - x.amax(-1, keepdim=True), torch.zeros(16)
        for column in shifted.exp().unbind(-1):
            running += column
        powers = torch.exp2(shifted * 1.4427)
        for output, passes in (
            (shifted.exp() / running[:, None], True),
            (powers / powers.sum(-1, keepdim=True), False),
        ):
            found = strict([output], expected, Inputs.NORMAL, Terms(longest=512, signed=1))
            assert found.passed is passes


def test_an_exp_that_clamps_is_no_error_beside_a_one() -> None:
    y = torch.zeros(4, 8, dtype=torch.float64)
    y[:, 0] = 1
    expected = Expected([y.float()], [y], [torch.zeros_like(y)])
    clamped = y.float() + 3.3e-38
    assert strict([clamped], expected, Inputs.OFFSET, Terms.of(8)).passed
    assert not strict([y.float() + 1e-4], expected, Inputs.OFFSET, Terms.of(8)).passed


def test_the_lax_tolerance_grows_with_the_reference_not_with_the_candidate() -> None:
    assert lax([torch.tensor([100.9])], [torch.tensor([100.0])]).passed
    assert not lax([torch.tensor([1e30])], [torch.tensor([0.0])]).passed
    assert not lax([torch.tensor([math.nan])], [torch.tensor([0.0])]).passed
    assert not lax([torch.tensor([math.inf])], [torch.tensor([0.0])]).passed


@pytest.mark.parametrize(
    ("run", "count"),
    [
        (lambda: torch.ones(4, 300) @ torch.ones(300, 5), 300),
        (lambda: torch.ones(4, 700).softmax(-1), 700),
        (lambda: torch.ones(8, 90).mean(), 720),
        (lambda: torch.nn.Conv2d(6, 4, 5)(torch.ones(1, 6, 9, 9)), 150),
        (lambda: torch.nn.LayerNorm(130)(torch.ones(2, 130)), 130),
        (lambda: torch.ones(1000)[:3] + 1, 1),
        (lambda: torch.nn.BatchNorm1d(5).eval()(torch.ones(2, 5, 90)), 1),
        (lambda: torch.nn.BatchNorm1d(5)(torch.ones(2, 5, 90)), 180),
        (lambda: torch.nn.functional.hardswish(torch.ones(2, 1000)), 1),
        (lambda: torch.nn.functional.prelu(torch.ones(2, 1000), torch.ones(1)), 1),
    ],
)
def test_the_longest_sum_is_counted(run: object, count: int) -> None:
    assert terms(run).longest == count  # type: ignore[arg-type]


def test_what_a_softmax_sums_is_of_one_sign() -> None:
    both = terms(lambda: (torch.ones(40, 30) @ torch.ones(30, 500)).softmax(-1))
    assert both == Terms(longest=500, signed=30)
    assert terms(lambda: torch.ones(40, 30).logsumexp(-1).sum()) == Terms(longest=40, signed=40)
