"""Where an answer jumps within honest roundoff, either side is right; nowhere else."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch

from cuagent.task import Precision, load_task
from cuagent.verify import Referee
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.oracle import sensitivity
from cuagent.verify.rules.bounds import MAX_BIASED, sequential
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected, Sensitivity
from cuagent.verify.trace.reductions import Terms

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
"""Draws on which some row's two largest scores lie nearer to each other than their roundoff."""


def sequential_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """fp32, each score summed one product after the other."""
    scores = torch.zeros(*q.shape[:-1], k.shape[-2])
    for d in range(q.shape[-1]):
        scores += q[..., d, None] * k[..., None, :, d]
    return (scores * q.shape[-1] ** -0.5).softmax(-1) @ v


def test_attention_in_another_order_is_right_where_scores_nearly_tie(
    referee: Referee, tmp_path: Path
) -> None:
    path = tmp_path / "attention.py"
    path.write_text(ATTENTION)
    with Referee(load_task(str(path), device="cpu"), fork_server=referee.fork_server) as opened:
        for seed in SEEDS:
            expected, inputs = opened.ask(Weights.OWN, 0, Inputs.BELOW, seed)
            honest = sequential_attention(*inputs)
            at_first = opened.context.judged([honest], expected, Inputs.BELOW)
            assert not at_first.passed  # else this draw shows nothing
            assert opened.judged([honest], expected, Inputs.BELOW, seed).passed
            others = honest.flip(0)
            assert not opened.judged([others], expected, Inputs.BELOW, seed).passed


def steps(kind: Inputs, jumps: bool = True) -> tuple[torch.Tensor, Expected]:
    """100 numbers, of which the fourth goes from 0 to 1 within roundoff; and what is known."""
    y = torch.linspace(0, 1, 100, dtype=torch.float64)
    moved = torch.full_like(y, 1e-6)
    moved[3] = 1.0
    own = y.float() if kind is Inputs.INTEGER else (y + 1e-9).float()
    spread = torch.full_like(y, 1e-7)
    known = Expected(
        [own], [own.double()], [spread], sensitivity=Sensitivity([moved], [0.0]) if jumps else None
    )
    return own.clone(), known


def test_a_jump_within_roundoff_is_no_error() -> None:
    for kind in (Inputs.NORMAL, Inputs.OWN):
        output, expected = steps(kind)
        output[3] += 1.0
        assert strict([output], expected, kind, Terms.of(4)).passed
        assert not strict([output], steps(kind, jumps=False)[1], kind, Terms.of(4)).passed
        output[3] += 0.01
        assert not strict([output], expected, kind, Terms.of(4)).passed


def test_a_jump_elsewhere_excuses_no_other_element() -> None:
    output, expected = steps(Inputs.NORMAL)
    output[4] += 0.01
    found = strict([output], expected, Inputs.NORMAL, Terms.of(4))
    assert not found.passed
    assert found.note.startswith("output 0, element (4,) of shape (100,): got ")


def test_what_moves_in_proportion_is_judged_as_tightly_in_doubt() -> None:
    generator = torch.Generator().manual_seed(1)
    y = torch.randn(1000, generator=generator, dtype=torch.float64)
    spread = torch.full_like(y, 1e-7)
    gate = 8 * math.sqrt(64) * 1e-7
    noise = torch.randn(1000, generator=generator, dtype=torch.float64)
    for moved in (None, Sensitivity([3 * gate * torch.ones_like(y)], [0.0])):
        expected = Expected([y], [y], [spread], sensitivity=moved)
        assert strict([y + 0.8 * gate * noise], expected, Inputs.NORMAL, Terms.of(64)).passed
        assert not strict([y + 1.5 * gate * noise], expected, Inputs.NORMAL, Terms.of(64)).passed


def test_round_numbers_have_no_such_excuse() -> None:
    _, expected = steps(Inputs.INTEGER)
    whole = expected.declared[0].round()
    expected = replace(expected, declared=[whole], precise=[whole.double()])
    output = whole.clone()
    assert strict([output], expected, Inputs.INTEGER, Terms.of(4)).passed
    output[3] += 1.0
    assert not strict([output], expected, Inputs.INTEGER, Terms.of(4)).passed


def test_a_kernel_may_round_to_the_type_of_its_outputs_before_a_jump() -> None:
    own, expected = steps(Inputs.NORMAL)
    for size, passes in ((1.0, True), (0.05, False)):  # the second is no more than in proportion
        output, moved = own.clone(), torch.zeros(100, dtype=torch.float64)
        output[3] += size
        moved[3] = size
        half = replace(expected, declared=[own.bfloat16()], sensitivity=Sensitivity([moved], [0.0]))
        assert strict([output.bfloat16()], half, Inputs.NORMAL, Terms.of(4)).passed is passes


def test_where_coarser_arithmetic_is_admitted_only_small_integers_are_exact() -> None:
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


def test_what_cancels_on_the_way_is_known_from_the_roundoff_of_each_step() -> None:
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


def test_an_element_of_greater_sensitivity_is_no_jump_unless_it_had_jumped_already() -> None:
    """One element of 10,000 moves a hundred times as far as the others, in proportion."""
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


def test_what_is_chosen_by_roundoff_may_be_another_though_it_is_exact() -> None:
    """The nearest of codes that are equally near: whole numbers, and either is right."""
    y = torch.tensor([[1.0, -1.0], [0.0, 1.0]])
    other = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    moved = (y - other).abs().double()
    for undecided in (True, False):
        known = Sensitivity([moved], [0.0], undecided=undecided)
        expected = Expected([y], [y.double()], [torch.zeros_like(moved)], sensitivity=known)
        assert strict([other], expected, Inputs.FEW, Terms.of(8)).passed is undecided
        assert not strict([other.flip(0)], expected, Inputs.FEW, Terms.of(8)).passed


def test_roundings_of_a_long_sum_may_add_up_where_its_terms_are_nearly_equal() -> None:
    assert sequential(3000, Inputs.FAR_EDGES) > 4 * sequential(3000)
    assert sequential(1 << 24, Inputs.OPPOSED) == MAX_BIASED
    assert sequential(3000, Inputs.CORNERS) == sequential(3000, Inputs.NORMAL)


def test_a_choice_among_equals_excuses_nothing_that_does_not_hang_on_it() -> None:
    """Of four elements two are equal, and either may be the one that is kept."""
    y = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    hangs = torch.tensor([0.0, 0.0, 0.25, 0.25], dtype=torch.float64)
    moved = Sensitivity([hangs], [0.0], [hangs])
    expected = Expected([y.float()], [y], [hangs / 2 + 1e-9], sensitivity=moved)
    other = torch.tensor([0.5, 0.25, 0.0, 0.25])
    assert strict([other], expected, Inputs.TIES, Terms.of(4)).passed
    both = torch.tensor([0.4, 0.2, 0.2, 0.2])
    found = strict([both], expected, Inputs.TIES, Terms.of(4))
    assert not found.passed
    assert not found.within_sensitivity


def test_one_number_that_the_reference_hits_by_luck_makes_no_long_sum_a_short_one() -> None:
    for count, passes in ((1, True), (64, False)):
        y = torch.full((count,), 1.5, dtype=torch.float64)
        expected = Expected([y.float()], [y], [torch.full_like(y, 1e-9)])
        x = y.float() + 4e-6
        assert strict([x], expected, Inputs.FEW, Terms.of(240_000)).passed is passes
