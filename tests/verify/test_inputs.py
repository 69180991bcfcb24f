"""What a candidate is tried on: that each kind shows what it is there to show, on every seed."""

from __future__ import annotations

import pytest
import torch

from cuagent.verify.inputs import Inputs, Weights, derive, ranges_of, shake

SEEDS = range(20)
SHAPES = [(7, 60), (2, 9), (4, 8, 6, 5), (1, 16, 12), (300,)]


def draw(kind: Inputs, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return derive(kind, [torch.empty(shape)], seed)[0]


def test_derived_inputs_keep_integers_and_depend_on_the_seed() -> None:
    own = [torch.rand(6, 5), torch.arange(4), torch.rand(3, dtype=torch.float64)]
    for kind in Inputs:
        first, second = derive(kind, own, 1), derive(kind, own, 2)
        assert torch.equal(first[1], own[1])
        assert [x.dtype for x in first] == [x.dtype for x in own]
        if kind not in (Inputs.OWN, Inputs.EXTREMES, Inputs.MASKS, Inputs.EMPTY):
            assert not torch.equal(first[0], second[0])


def test_extreme_indices_are_those_of_the_task_and_leave_offsets_and_permutations_alone() -> None:
    draws = [
        [torch.randint(50, (64,)), torch.arange(9), torch.randperm(9), torch.ones(3).bool()]
        for _ in range(4)
    ]
    ranges = ranges_of(draws)
    assert ranges[1:] == [None, None, None]
    drawn = derive(Inputs.EXTREMES, draws[0], 5, ranges)[0]
    low, high = ranges[0] or (0, 0)
    assert int((drawn == low).sum()) > 5
    assert int((drawn == high).sum()) > 5
    assert (low, high) == (int(min(d[0].min() for d in draws)), int(max(d[0].max() for d in draws)))


def test_shaken_weights_leave_no_identity_and_keep_constants() -> None:
    model = torch.nn.BatchNorm1d(64)
    model.register_buffer("mask", torch.tril(torch.ones(4, 4)))
    names = frozenset(name for name, _ in model.named_parameters())
    state = shake(Weights.SHAKEN, model.state_dict(), names, 3)
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert not torch.equal(state[name], model.state_dict()[name])
    assert torch.equal(state["mask"], model.mask)
    assert bool((state["running_var"] > 0).all())


@pytest.mark.parametrize("shape", SHAPES[:3])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_differ_as_far_as_they_may_on_every_seed(shape: tuple[int, ...], seed: int) -> None:
    """Or a maximum shared by all rows, or one shift for all of them, passes now and then."""
    mixed = draw(Inputs.MIXED, shape, seed).flatten(1).abs().amax(-1)
    assert mixed.max() > 1000 * mixed.min()
    far = draw(Inputs.LEVELS, shape, seed)[..., 0]
    assert (far.max(), far.min()) == (pytest.approx(5e4, rel=0.01), pytest.approx(-5e4, rel=0.01))


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_normalised_together_is_small_or_flat_as_a_whole(seed: int) -> None:
    """A norm over a sample sees its epsilon only where no row of the sample is large."""
    samples = draw(Inputs.MIXED, (4, 8, 6, 5), seed).flatten(1)
    assert float(samples.abs().amax(1).min()) < 0.05
    assert any(len(sample.unique()) == 1 for sample in draw(Inputs.FLAT, (4, 8, 6, 5), seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_some_row_is_zero_in_every_flat_draw(shape: tuple[int, ...]) -> None:
    for seed in SEEDS:
        assert not bool(draw(Inputs.FLAT, shape, seed).any(-1).all())


@pytest.mark.parametrize("axis", [0, 1])
def test_a_maximum_that_leaves_out_an_end_errs_on_every_seed(axis: int) -> None:
    for seed in SEEDS:
        for kind in (Inputs.EDGES, Inputs.OTHER_EDGES):
            lines = draw(kind, (24, 33), seed).movedim(axis, -1)
            for short in (lines[..., 1:], lines[..., :-1]):
                assert not torch.equal(short.amax(-1), lines.amax(-1))
                assert not torch.equal(short.amin(-1), lines.amin(-1))


def test_a_single_line_has_its_largest_value_first_or_last() -> None:
    places = {int(draw(k, (300,), 1).argmax()) for k in (Inputs.EDGES, Inputs.OTHER_EDGES)}
    assert places == {0, 299}


def test_masks_have_rows_that_are_full_and_rows_that_are_empty() -> None:
    own = [torch.rand(9, 20) > 0.5, torch.rand(9, 20)]
    masks, values = derive(Inputs.MASKS, own, 3)
    assert {0, 20} < set(masks.sum(-1).tolist())
    assert torch.equal(values, own[1])


def test_a_small_running_variance_comes_with_a_small_gain() -> None:
    model = torch.nn.BatchNorm1d(64)
    names = frozenset(name for name, _ in model.named_parameters())
    state = shake(Weights.SHAKEN, model.state_dict(), names, 3)
    assert float(state["running_var"].min()) < 1e-2
    x = torch.randn(50, 64) * state["running_var"].sqrt()
    model.load_state_dict(state)
    with torch.no_grad():
        assert float(model.eval()(x).abs().max()) < 10
