"""Jumps within honest roundoff: either side is right, and no other error is excused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cuagent.attempt import Attempt
from cuagent.build import build
from cuagent.task import Precision, load_task
from cuagent.verify import Referee
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.oracle import sensitivity
from cuagent.verify.rules.bounds import (
    COARSE_GATE,
    LEAST,
    LOCAL,
    MAX_BIASED,
    OWN_ERROR,
    PRECISION_GATE,
    UNEVEN,
    UNITS,
    JumpLimit,
    Sums,
    coarsest,
    explains,
    gates,
    jump_limit_of,
    reach,
    sequential,
    without_jumps,
)
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected, Sensitivity
from cuagent.verify.trace.reductions import Terms, terms
from cuagent.worker import ForkServer

ATTENTION = """
import torch
import torch.nn.functional as F

class Model(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

def get_inputs():
    return [torch.randn(2, 2, 12, 16) for _ in range(3)]
"""
SEEDS = 34, 131
"""Seeds of draws on which the two largest scores of some row differ by less than roundoff."""


def sequential_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return attention in fp32 with sequentially summed scores."""
    scores = torch.zeros(*q.shape[:-1], k.shape[-2])
    for d in range(q.shape[-1]):
        scores += q[..., d, None] * k[..., None, :, d]
    return (scores * q.shape[-1] ** -0.5).softmax(-1) @ v


def test_sequential_attention_is_accepted_at_near_ties_of_scores(
    referee: Referee, tmp_path: Path
) -> None:
    path = tmp_path / "attention.py"
    path.write_text(ATTENTION)
    with Referee(load_task(str(path), device="cpu"), fork_server=referee.fork_server) as opened:
        for seed in SEEDS:
            expected, inputs = opened.ask(Weights.OWN, 0, Inputs.BELOW, seed)
            honest = sequential_attention(*inputs)
            at_first = opened.context.judged([honest], expected, Inputs.BELOW)
            assert not at_first.passed  # the draw has a near-tie
            assert opened.judged([honest], expected, Inputs.BELOW, opened.sensitivity(seed)).passed
            others = honest.flip(0)
            assert not opened.judged(
                [others], expected, Inputs.BELOW, opened.sensitivity(seed)
            ).passed


def steps(kind: Inputs, jumps: bool = True) -> tuple[torch.Tensor, Expected]:
    """Return 100 numbers whose fourth jumps by 1 within roundoff, and the expectation."""
    y = torch.linspace(0, 1, 100, dtype=torch.float64)
    moved = torch.full_like(y, 1e-6)
    moved[3] = 1.0
    own = y.float() if kind is Inputs.INTEGER else (y + 1e-9).float()
    spread = torch.full_like(y, 1e-7)
    known = Expected(
        [own], [own.double()], [spread], sensitivity=Sensitivity([moved], [0.0]) if jumps else None
    )
    return own.clone(), known


def test_jump_within_roundoff_is_accepted() -> None:
    for kind in (Inputs.NORMAL, Inputs.OWN):
        output, expected = steps(kind)
        output[3] += 1.0
        assert strict([output], expected, kind, Terms.of(4)).passed
        assert not strict([output], steps(kind, jumps=False)[1], kind, Terms.of(4)).passed
        output[3] += 0.01
        assert not strict([output], expected, kind, Terms.of(4)).passed


def test_jump_of_one_element_excuses_no_other() -> None:
    output, expected = steps(Inputs.NORMAL)
    output[4] += 0.01
    found = strict([output], expected, Inputs.NORMAL, Terms.of(4))
    assert not found.passed
    assert found.note.startswith("output 0, element (4,) of shape (100,): got ")


def test_proportional_sensitivity_does_not_widen_the_bound() -> None:
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(1000, generator=generator, dtype=torch.float64)
    spread = torch.full_like(y, 1e-7)
    gate = 8 * math.sqrt(64) * 1e-7
    noise = torch.randn(1000, generator=generator, dtype=torch.float64)
    for moved in (None, Sensitivity([3 * gate * torch.ones_like(y)], [0.0])):
        expected = Expected([y], [y], [spread], sensitivity=moved)
        assert strict([y + 0.8 * gate * noise], expected, Inputs.NORMAL, Terms.of(64)).passed
        assert not strict([y + 1.5 * gate * noise], expected, Inputs.NORMAL, Terms.of(64)).passed


def test_jump_is_not_excused_on_small_integers() -> None:
    _, expected = steps(Inputs.INTEGER)
    whole = expected.declared[0].round()
    expected = replace(expected, declared=[whole], precise=[whole.double()])
    output = whole.clone()
    assert strict([output], expected, Inputs.INTEGER, Terms.of(4)).passed
    output[3] += 1.0
    assert not strict([output], expected, Inputs.INTEGER, Terms.of(4)).passed


def test_jump_from_rounding_to_the_output_dtype_is_accepted() -> None:
    own, expected = steps(Inputs.NORMAL)
    for size, passes in ((1.0, True), (0.05, False)):  # 0.05 is proportional to the spread
        output, moved = own.clone(), torch.zeros(100, dtype=torch.float64)
        output[3] += size
        moved[3] = size
        half = replace(expected, declared=[own.bfloat16()], sensitivity=Sensitivity([moved], [0.0]))
        assert strict([output.bfloat16()], half, Inputs.NORMAL, Terms.of(4)).passed is passes


def test_only_small_integers_are_exact_if_tf32_is_admitted() -> None:
    _, expected = steps(Inputs.INTEGER)
    whole = expected.declared[0].round()
    expected = replace(expected, declared=[whole], precise=[whole.double()])
    output = whole.clone()
    output[3] += 1.0
    for kind, admitted, passes in (
        (Inputs.CANCELLATION, Precision.MATCH, False),
        (Inputs.CANCELLATION, Precision.TF32, True),
        (Inputs.INTEGER, Precision.TF32, False),
    ):
        assert strict([output], expected, kind, Terms.of(4), admitted).passed is passes


def test_cancellation_of_intermediates_widens_the_bound() -> None:
    def far_and_back(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return [(tensors[0] + 1000) - 1000]

    x = torch.randn(4096, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    reference = sensitivity.PerturbedReference(
        far_and_back, [x], {}, generator, lambda: far_and_back([x])
    )
    (carried,) = sensitivity.carried(reference, 8)
    assert 800 < carried < 1200
    y, spread = far_and_back([x])[0], torch.zeros_like(x)
    rounded = (x.float() + 1000 - 1000).double()
    for known, passes in ((None, False), (Sensitivity([spread], [carried]), True)):
        expected = Expected([y.float()], [y], [spread], sensitivity=known)
        assert strict([rounded.float()], expected, Inputs.NORMAL, Terms.of(1)).passed is passes
        assert not strict([rounded.bfloat16().float()], expected, Inputs.NORMAL, Terms.of(1)).passed


def test_large_proportional_sensitivity_is_not_a_jump() -> None:
    """One element of 10,000 has a hundred times the spread and sensitivity of the others."""
    y = torch.zeros(10_000, dtype=torch.float64)
    spread, moved = torch.full_like(y, 1e-7), torch.full_like(y, 2 * 64e-7)
    spread[3] *= 100
    error = torch.zeros_like(y)
    error[3] = 2 * 64e-5
    for far, passes in ((2 * 64e-5, False), (0.4 * 64e-5, True)):
        moved[3] = far
        expected = Expected([y], [y], [spread], sensitivity=Sensitivity([moved], [0.0]))
        found = strict([error * far / error[3]], expected, Inputs.NORMAL, Terms.of(64))
        assert found.passed is passes


def test_exact_result_of_an_undecided_choice_may_differ() -> None:
    """Both of two equally near codes are right, though they are integers."""
    y = torch.tensor([[1.0, -1.0], [0.0, 1.0]])
    other = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    moved = (y - other).abs().double()
    for undecided in (True, False):
        known = Sensitivity([moved], [0.0], undecided=undecided)
        expected = Expected([y], [y.double()], [torch.zeros_like(moved)], sensitivity=known)
        assert strict([other], expected, Inputs.FEW, Terms.of(8)).passed is undecided
        assert not strict([other.flip(0)], expected, Inputs.FEW, Terms.of(8)).passed


def test_sequential_bound_grows_linearly_on_biased_kinds() -> None:
    assert sequential(3000, Inputs.FAR_EDGES) > 4 * sequential(3000)
    assert sequential(1 << 24, Inputs.OPPOSED) == MAX_BIASED
    assert sequential(3000, Inputs.CORNERS) == sequential(3000, Inputs.NORMAL)


def test_choice_among_equals_excuses_only_elements_that_depend_on_it() -> None:
    """Two of four elements are equal, and either may be chosen."""
    y = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    swapped = torch.tensor([0.0, 0.0, 0.25, 0.25], dtype=torch.float64)
    moved = Sensitivity([swapped], [0.0], [swapped])
    expected = Expected([y.float()], [y], [swapped / 2 + 1e-9], sensitivity=moved)
    other = torch.tensor([0.5, 0.25, 0.0, 0.25])
    assert strict([other], expected, Inputs.TIES, Terms.of(4)).passed
    both = torch.tensor([0.4, 0.2, 0.2, 0.2])
    found = strict([both], expected, Inputs.TIES, Terms.of(4))
    assert not found.passed
    assert not found.within_sensitivity


def test_choice_that_changes_a_loss_by_little_is_excused_by_just_that_amount() -> None:
    """One of 128 choices changes the loss by 4e-4 of its size."""
    y = torch.tensor(1.787, dtype=torch.float64)
    change = torch.full_like(y, 7e-4)
    moved = Sensitivity([change], [0.0], [change], undecided=True)
    expected = Expected([y.float()], [y], [torch.full_like(y, 1e-9)], sensitivity=moved)
    for share, passes in ((1, True), (-1, True), (1.3, False)):
        found = strict([(y - share * change).float()], expected, Inputs.FEW, Terms.of(24))
        assert found.passed is passes, share


def test_few_terms_are_assumed_only_with_enough_exact_results() -> None:
    for count, passes in ((1, True), (15, True), (16, False), (64, False)):
        y = torch.full((count,), 1.5, dtype=torch.float64)
        expected = Expected([y.float()], [y], [torch.full_like(y, 1e-9)])
        x = y.float() + 4e-6
        assert strict([x], expected, Inputs.FEW, Terms.of(240_000)).passed is passes


U = 2.0**-24


def sums_of(size: float, own: float, spread: float, error: list[float]) -> Sums:
    y = torch.full((len(error),), size, dtype=torch.float64)
    x = y + torch.tensor(error, dtype=torch.float64)
    return Sums.of([(x, y + own, y, torch.full_like(y, spread))])


def test_unit_roundoffs_are_those_of_the_formats() -> None:
    bits = {Precision.MATCH: 24, Precision.FP32: 24, Precision.TF32: 11, Precision.FP16: 11}
    assert {p: 2.0**-n for p, n in (bits | {Precision.BF16: 8}).items()} == UNITS


def test_coarsest_arithmetic_is_that_of_outputs_products_or_the_task() -> None:
    single, half = torch.ones(1), torch.ones(1).bfloat16()
    assert coarsest([single], Precision.MATCH) == 2.0**-24
    assert coarsest([single, half], Precision.MATCH) == 2.0**-8
    assert coarsest([single], Precision.TF32) == 2.0**-11
    assert coarsest([single], Precision.MATCH, 2.0**-11) == 2.0**-11


def test_gates_are_the_documented_formulas() -> None:
    terms, unit_out = Terms(100, 16), 2.0**-8
    floor = unit_out**2 * 3.0 + LEAST
    by_spread = gates(sums_of(3.0, 0.0, 1e-3, [0.0] * 4), torch.bfloat16, Inputs.NORMAL, terms, U)
    one_signed = sequential(100)
    gate = PRECISION_GATE * 4 * 1e-3 + one_signed * 3.0
    assert by_spread.rms == pytest.approx(gate + unit_out * 3 + floor, rel=1e-6)
    assert by_spread.local == pytest.approx(LOCAL * gate + floor, rel=1e-6)
    assert by_spread.own == pytest.approx(floor)
    assert by_spread.relative == pytest.approx(2 * unit_out + LOCAL * one_signed)
    by_own = gates(sums_of(3.0, 0.5, 1e-3, [0.0] * 4), torch.bfloat16, Inputs.NORMAL, terms, U)
    assert by_own.rms == pytest.approx(OWN_ERROR * 0.5 + floor)
    assert by_own.own == pytest.approx(OWN_ERROR * 0.5 + floor)


def test_error_on_an_exact_draw_stays_below_a_quarter() -> None:
    exact = sums_of(4.0, 0.0, 10.0, [0.0] * 4)
    found = gates(exact, torch.float32, Inputs.INTEGER, Terms(100, 16), U)
    assert found.local == pytest.approx(0.25, rel=1e-6)


def test_precision_is_named_for_even_errors_only() -> None:
    terms = Terms(1, 1)
    for precision in (Precision.TF32, Precision.BF16):
        size = 0.9 * COARSE_GATE * 1e-6 * UNITS[precision] / U
        even = sums_of(0.0, 0.0, 1e-6, [size] * 4000)
        assert explains(even, terms, 1e-12, Precision.FP32) is precision
        one = sums_of(0.0, 0.0, 1e-6, [size * math.sqrt(4000), *[0.0] * 3999])
        assert one.largest["error"] > UNEVEN * one.rms("error")
        assert explains(one, terms, 1e-12, Precision.FP32) is None


DOUBLE_TASK = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        centred = x - x.mean(1, keepdim=True)
        return centred / ((centred * centred).mean(1, keepdim=True) + 1e-12).sqrt()
def get_inputs():
    return [torch.randn(8, 60, dtype=torch.{dtype})]
"""
DOUBLE_CANDIDATE = """
import torch
class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = x{before}
        y = y - y.sum(1, keepdim=True) * (1 / y.shape[1])
        return (y * torch.rsqrt(y.var(1, keepdim=True, correction=0) + 1e-12)){after}
"""


@pytest.mark.parametrize(
    ("dtype", "changes"),
    [
        (
            "float64",
            {("", ""): True, (".float()", ".double()"): False, ("", ".float().double()"): False},
        ),
        ("float32", {("", ""): True, (".double()", ".float()"): True}),
    ],
)
def test_float64_reference_is_judged_at_float64(
    tmp_path: Path, fork_server: ForkServer, dtype: str, changes: dict[tuple[str, str], bool]
) -> None:
    (tmp_path / "task.py").write_text(DOUBLE_TASK.format(dtype=dtype))
    with Referee(load_task(tmp_path / "task.py"), fork_server=fork_server) as referee:
        for (before, after), accepted in changes.items():
            text = DOUBLE_CANDIDATE.format(before=before, after=after)
            attempt = Attempt((("model_new.py", text),))
            verdict = referee.verify(attempt, build(attempt, referee.task.device))
            assert verdict.accepted is accepted, (before, after, verdict)


def test_terms_know_references_in_float64() -> None:
    x = torch.randn(4, 4, dtype=torch.float64)
    assert terms(lambda: (x @ x).relu()).double
    assert not terms(lambda: (x.float() @ x.float()).double()).double
    assert not terms(lambda: x.float() @ x.float()).double


def test_spread_is_limited_to_64_times_the_roundoff() -> None:
    roundoff = 1e-7 + U * 3.0
    for spread, carried in ((1e-3, 1e3), (1e-6, 2.0)):
        sums = sums_of(3.0, 1e-7, spread, [0.0] * 4)
        sums.carried = carried
        sums.bound_spread()
        assert sums.rms("spread") == pytest.approx(min(spread, 64 * roundoff))
        assert sums.carried == pytest.approx(min(carried, 64 * roundoff / U))


def test_gates_widen_by_the_kind_of_draw_and_at_most_by_a_share_of_the_variation() -> None:
    def local(kind: Inputs, variation: float) -> float:
        """Return the bound on one element of two numbers with this deviation."""
        y = torch.tensor([-variation, variation], dtype=torch.float64)
        sums = Sums.of([(y, y, y, torch.full_like(y, 1e-6))])
        assert sums.variation == pytest.approx(variation)
        return gates(sums, torch.float32, kind, Terms(1, 16), U).local

    honest = 8 * 4 * 1e-6
    for kind, factor in ((Inputs.NORMAL, 1), (Inputs.OWN, 1.5), (Inputs.LARGE, 12.5)):
        gate = factor * (honest + U)
        assert local(kind, 1.0) == pytest.approx(5 * gate, rel=1e-6)
    assert local(Inputs.LARGE, 1.2e-3) == pytest.approx(5 * 0.05 * 1.2e-3, rel=1e-6)
    assert local(Inputs.LARGE, 1e-5) == pytest.approx(5 * (honest + U * 1e-5), rel=1e-6)


def test_variation_is_the_deviation_from_the_mean() -> None:
    y = torch.tensor([1.0, 5.0], dtype=torch.float64)
    assert Sums.of([(y, y, y, y)]).variation == 2.0


def test_biased_sequential_bound_assumes_four_partial_sums() -> None:
    assert sequential(3000, Inputs.FAR_EDGES) == pytest.approx(U * 3000 / 4)
    assert sequential(3000) == pytest.approx(U * math.sqrt(3000))


def test_reach_of_sums_adds_the_roundoff_of_coarse_factors() -> None:
    assert reach(16, U) == pytest.approx(8 * 4 * U)
    assert reach(16, 2.0**-11) == pytest.approx(8 * 4 * U + 2.5 * 2.0**-11)
    sums, terms = sums_of(0.0, 0.0, 1e-6, [0.0] * 4), Terms(1, 16)
    limit = jump_limit_of(sums, Inputs.NORMAL, terms, 2.0**-11)
    assert limit.gate == pytest.approx(5 * (8 * 4 + 2.5 * 2.0**13) * 1e-6)
    assert limit.reach == reach(16, 2.0**-11)


def test_jump_is_a_change_out_of_proportion_to_the_spread() -> None:
    """The spread predicts a change by 1e-6: half of it to five times as much is roundoff."""
    y = torch.zeros(5, dtype=torch.float64)
    moved = torch.tensor([0.4e-6, 0.6e-6, 4.9e-6, 5.1e-6, 5.1e-6], dtype=torch.float64)
    x = torch.tensor([1.0, 1.0, -1.0, -1.0, 2e-6], dtype=torch.float64)
    spread = torch.full_like(y, 1e-7)
    limit = JumpLimit(1e-7, 10 * U)
    found = without_jumps(x, y, spread, moved, limit) - x
    expected = torch.tensor([-0.4e-6, 0.0, 0.0, 5.1e-6, -2e-6], dtype=torch.float64)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-12)
    within = without_jumps(x, y, spread, moved, JumpLimit(1e-5, 10 * U))
    assert torch.equal(within, x)


def test_finest_arithmetic_that_explains_an_error_is_named() -> None:
    terms = Terms(1, 16)
    fine = 8 * 4 * 1e-6
    for error, precision in ((0.99 * fine, Precision.MATCH), (1.01 * fine, Precision.TF32)):
        sums = sums_of(0.0, 0.0, 1e-6, [error] * 4)
        assert explains(sums, terms, 1e-12, Precision.FP32) is precision
    largest = fine + 2.5 * 1e-6 * 2.0**16
    for error, found in ((0.99 * largest, Precision.BF16), (1.01 * largest, None)):
        sums = sums_of(0.0, 0.0, 1e-6, [error] * 4)
        assert explains(sums, terms, 1e-12, Precision.FP32) is found
    small = sums_of(0.0, 0.0, 0.0, [1e-3] * 4)
    assert explains(small, terms, 2e-3, Precision.MATCH) is Precision.MATCH
    assert explains(small, terms, 2e-3, Precision.TF32) is None
