"""The lax and the strict rule: accepted and rejected outputs, and the bound that decides."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from cuagent.task import Precision
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.rules.tolerance import lax, strict
from cuagent.verify.rules.types import Expected, Sensitivity
from cuagent.verify.tensors import UNIT
from cuagent.verify.trace.reductions import Terms, terms


def product(k: int, kind: Inputs = Inputs.NORMAL) -> tuple[torch.Tensor, torch.Tensor, Expected]:
    """Return the factors of an fp32 product with sums of length k, and the oracle's answer."""
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


def test_sequential_fp32_sum_passes_and_tf32_and_bf16_fail() -> None:
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
def test_spread_never_tightens_a_bound(kind: Inputs) -> None:
    a, b, expected = product(64, Inputs.INTEGER if kind is Inputs.INTEGER else Inputs.NORMAL)
    without = replace(expected, spread=[torch.zeros_like(s) for s in expected.spread])
    for size in (1e-7, 1e-5, 1e-2):
        output = (a @ b) * (1 + size * torch.randn(64, 64))
        ratios = [strict([output], e, kind, Terms.of(64)).ratio for e in (expected, without)]
        assert ratios[0] <= ratios[1]


def test_admitted_precision_passes() -> None:
    a, b, expected = product(512)
    coarse = a.bfloat16().float() @ b.bfloat16().float()
    assert not strict([coarse], expected, Inputs.NORMAL, Terms.of(512)).passed
    assert not strict([coarse], expected, Inputs.NORMAL, Terms.of(512), Precision.TF32).passed
    assert strict([coarse], expected, Inputs.NORMAL, Terms.of(512), Precision.BF16).passed


def test_single_wrong_element_is_found_and_described() -> None:
    a, b, expected = product(256)
    output = a @ b
    output[3, 4] += 0.01
    found = strict([output], expected, Inputs.NORMAL, Terms.of(256))
    assert not found.passed
    assert found.note.startswith("output 0, element (3, 4) of shape (64, 64): got ")
    assert "0.0244 % of the elements are wrong (1 of 4,096)" in found.note
    assert "only one index" in found.hint


def test_larger_bound_applies() -> None:
    y = torch.linspace(1, 2, 100, dtype=torch.float64)
    unsteady = Expected([(y + 1e-3).float()], [y], [torch.zeros_like(y)])
    assert strict([(y - 2e-3).float()], unsteady, Inputs.NORMAL, Terms.of(1)).passed
    assert not strict([(y - 4e-3).float()], unsteady, Inputs.NORMAL, Terms.of(1)).passed


def test_small_integers_admit_roundoff_but_no_wrong_index() -> None:
    a, b, expected = product(128, Inputs.INTEGER)
    running = a @ b  # exact
    assert strict([running], expected, Inputs.INTEGER, Terms.of(128)).passed
    rounded = running + 1e-6  # like a running mean or a transform with thirds
    assert strict([rounded], expected, Inputs.INTEGER, Terms.of(128)).passed
    wrong = running.clone()
    wrong[0, 0] += 1
    assert not strict([wrong], expected, Inputs.INTEGER, Terms.of(128)).passed


def test_nan_and_inf_must_be_where_the_reference_has_them() -> None:
    y = torch.tensor([1.0, math.nan, math.inf, -math.inf], dtype=torch.float64)
    expected = Expected([y.float()], [y], [torch.zeros(4, dtype=torch.float64)])
    assert strict([y.float()], expected, Inputs.OWN, Terms.of(1)).passed
    for index, value in ((0, math.nan), (1, 1.0), (2, 3e38), (2, -math.inf), (3, math.nan)):
        output = y.float()
        output[index] = value
        found = strict([output], expected, Inputs.OWN, Terms.of(1))
        assert not found.passed, (index, value)
        said = f"got {value:.4g}, expected {float(y[index]):.4g}; "
        assert found.note.startswith(f"output 0, element ({index},) of shape (4,): {said}")


def test_integer_outputs_must_equal_either_reference() -> None:
    declared, precise = torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])
    expected = Expected([declared], [precise], [torch.zeros(3)])
    assert strict([torch.tensor([1, 2, 3])], expected, Inputs.OWN, Terms.of(1)).passed
    assert strict([torch.tensor([1, 2, 4])], expected, Inputs.OWN, Terms.of(1)).passed
    for explain in (True, False):
        wrong = [torch.tensor([1, 2, 5])]
        assert not strict(wrong, expected, Inputs.OWN, Terms.of(1), explain=explain).passed


def test_integers_may_differ_at_near_ties_but_booleans_not_on_round_numbers() -> None:
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


def test_sequential_sum_of_one_sign_passes() -> None:
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


def test_inexact_log2e_in_a_softmax_fails_and_a_sequential_sum_passes() -> None:
    """A factor 1.4427 for log2(e): a sum of 512 terms may err as much, an exponent may not."""
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


def test_exp_that_clamps_passes() -> None:
    y = torch.zeros(4, 8, dtype=torch.float64)
    y[:, 0] = 1
    expected = Expected([y.float()], [y], [torch.zeros_like(y)])
    clamped = y.float() + 3.3e-38
    assert strict([clamped], expected, Inputs.OFFSET, Terms.of(8)).passed
    assert not strict([y.float() + 1e-4], expected, Inputs.OFFSET, Terms.of(8)).passed


def test_lax_tolerance_scales_with_the_reference() -> None:
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
def test_longest_sum_is_counted(run: object, count: int) -> None:
    assert terms(run).longest == count  # type: ignore[arg-type]


def test_sum_inside_a_softmax_counts_as_one_signed() -> None:
    both = terms(lambda: (torch.ones(40, 30) @ torch.ones(30, 500)).softmax(-1))
    assert both == Terms(longest=500, signed=30)
    assert terms(lambda: torch.ones(40, 30).logsumexp(-1).sum()) == Terms(longest=40, signed=40)


def test_each_output_needs_an_expected_one() -> None:
    y = torch.ones(3, dtype=torch.float64)
    expected = Expected([y.float()], [y], [torch.zeros(3)])
    with pytest.raises(ValueError, match="zip"):
        strict([y.float(), y.float()], expected, Inputs.OWN, Terms.of(1))


def test_lax_rule_refuses_errors_beyond_its_tolerance() -> None:
    for error, passes in ((0.0099, True), (0.015, False)):
        found = lax([torch.tensor([error])], [torch.tensor([0.0])])
        assert found.passed is passes
        assert found.worst == pytest.approx(error / 1e-2)


def test_error_within_the_sensitivity_is_marked_and_not_excused() -> None:
    """Elements move in proportion to their spread, by more or by less than the error."""
    y = torch.linspace(-1, 1, 1000, dtype=torch.float64)
    gate = 8 * math.sqrt(64) * 1e-7
    for share, within in ((3.0, True), (0.1, False)):
        moved = Sensitivity([share * gate * torch.ones_like(y)], [0.0])
        expected = Expected([y], [y], [torch.full_like(y, 1e-7)], sensitivity=moved)
        found = strict([y + 2 * gate], expected, Inputs.NORMAL, Terms.of(64))
        assert not found.passed
        assert found.within_sensitivity is within


def test_round_numbers_are_judged_narrowly_where_a_coarse_precision_represents_them() -> None:
    whole = torch.tensor([0.5, 1.0, 1.5, 2.0] * 8, dtype=torch.float64)
    for factor, passes in ((1.0, False), (1 + 2.0**-12, True)):
        y = whole * factor
        output = y.float()
        output[3] += 0.2
        jumps = torch.full_like(y, 0.25)
        expected = Expected([y.float()], [y], [jumps], certain=True)
        found = strict([output], expected, Inputs.HALVES, Terms.of(1), Precision.BF16)
        assert found.passed is passes
