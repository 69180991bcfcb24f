"""What a candidate is tried on: that each kind shows what it is there to show, on every seed."""

from __future__ import annotations

import pytest
import torch

from cuagent.verify.inputs.draws import LineView
from cuagent.verify.inputs.kinds import MAX_SWEEP, Inputs, brink_steps, derive
from cuagent.verify.inputs.ranges import ends_of, ranges_of
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights, derive_weights

SEEDS = range(20)
OTHER_TYPES = (
    Inputs.OWN,
    Inputs.VARIED,
    Inputs.EXTREMES,
    Inputs.ALIKE,
    Inputs.EVERY,
    Inputs.MASKS,
    Inputs.EMPTY,
    Inputs.SINGLE,
    Inputs.ENDS,
)
"""Kinds that leave floating tensors as they are."""
SHAPES = [(7, 60), (2, 9), (4, 8, 6, 5), (1, 16, 12), (300,)]


def draw(kind: Inputs, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return derive(kind, [torch.empty(shape)], seed)[0]


def test_derived_inputs_keep_integers_and_depend_on_the_seed() -> None:
    own = [torch.rand(6, 5), torch.arange(4), torch.rand(3, dtype=torch.float64)]
    for kind in Inputs:
        first, second = derive(kind, own, 1), derive(kind, own, 2)
        assert torch.equal(first[1], own[1])
        assert [x.dtype for x in first] == [x.dtype for x in own]
        if kind not in OTHER_TYPES:
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
    state = derive_weights(Weights.SHAKEN, model.state_dict(), names, 3)
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


def test_an_extreme_at_an_end_is_so_far_off_that_exp_overflows_without_it() -> None:
    for seed in SEEDS:
        lines = draw(Inputs.FAR_EDGES, (24, 33), seed)
        for short in (lines[:, 1:], lines[:, :-1]):
            assert bool((lines - short.amax(-1, keepdim=True)).exp().isinf().any())


def test_of_several_tensors_every_second_is_offset_the_other_way() -> None:
    own = [torch.empty(9, 20), torch.arange(3), torch.empty(9, 20), torch.empty(4)]
    means = [float(x.float().mean()) for x in derive(Inputs.OPPOSED, own, 3)]
    assert means == pytest.approx([1e3, 1, -1e3, 1e3], abs=5)


def test_whole_gains_and_slopes_are_sometimes_two() -> None:
    state = {"slope": torch.tensor([0.25]), "gain": torch.ones(40), "matrix": torch.ones(9, 9)}
    drawn = derive_weights(Weights.INTEGER, state, frozenset(state), 3)
    assert drawn["slope"].tolist() == [2]
    assert set(drawn["gain"].tolist()) == {-2, -1, 0, 1, 2}
    assert set(drawn["matrix"].flatten().tolist()) == {-1, 0, 1}


def test_a_single_line_has_its_largest_value_first_or_last() -> None:
    places = {int(draw(k, (300,), 1).argmax()) for k in (Inputs.EDGES, Inputs.OTHER_EDGES)}
    assert places == {0, 299}


@pytest.mark.parametrize(
    ("shape", "way"),
    [
        ((5, 30), LineView((5, 30), (1,))),
        ((30, 4), LineView((30, 4), (0,))),
        ((3, 2, 4, 5), LineView((3, 2, 4, 5), (1, 2, 3))),
        ((6, 20), LineView((12, 10), (1,))),
        ((17,), LineView((17,), (0,))),
    ],
)
def test_extremes_stand_in_every_place_in_as_few_draws_as_can_be(
    shape: tuple[int, ...], line_view: LineView
) -> None:
    """A maximum that leaves out any one place then errs; twice the draws are for any and all."""
    largest, least, above, below = set(), set(), set(), set()
    for step in range(2 * line_view.steps):
        lines = line_view.lines(
            derive(Inputs.MOVING, [torch.empty(shape)], 5 * MAX_SWEEP + step, (), [[line_view]])[0]
        )
        if step < line_view.steps:
            largest |= set(lines.argmax(1).tolist())
            least |= set(lines.argmin(1).tolist())
        above |= {int(line.argmax()) for line in lines if (line > 0).sum() == 1}
        below |= {int(line.argmin()) for line in lines if (line < 0).sum() == 1}
    assert largest == least == above == below == set(range(line_view.places))


def test_an_audit_makes_as_many_draws_of_a_sweep_as_the_verdict() -> None:
    first = Seeds()
    made = first.draw_several(7)
    assert [seed % MAX_SWEEP for seed in made] == list(range(7))
    assert len({seed // MAX_SWEEP for seed in made}) == 1
    assert Seeds(first.drawn).draw_several(99) == made


def test_each_flag_is_once_set_alone_and_once_clear_alone() -> None:
    sets, clears = set(), set()
    for step in range(2 * 6):
        flags, values = derive(
            Inputs.SINGLE, [torch.ones(2, 12).bool(), torch.ones(3)], 9 * MAX_SWEEP + step
        )
        sets |= {int(line.long().argmax()) for line in flags if line.sum() == 1}
        clears |= {int(line.long().argmin()) for line in flags if line.sum() == 11}
        assert torch.equal(values, torch.ones(3))
    assert sets == clears == set(range(12))


def test_integers_take_on_every_value_and_of_negative_ones_the_least() -> None:
    own, ranges = [torch.zeros(4, 5).long()], [(-100, 50)]
    seen = [derive(Inputs.EVERY, own, 7 * MAX_SWEEP + step, ranges)[0] for step in range(3)]
    assert set(torch.cat(seen).flatten().tolist()) == {-100, *range(51)}


def test_rows_hold_one_index_throughout_once_all_have_come() -> None:
    own, ranges = [torch.zeros(4, 5).long(), torch.zeros(20).long()], [(0, 11), (0, 11)]
    drawn = [derive(Inputs.EVERY, own, 7 * MAX_SWEEP + step, ranges) for step in range(1, 4)]
    assert all(bool((rows == rows[:, :1]).all()) for rows, _ in drawn)
    assert set(torch.cat([rows[:, 0] for rows, _ in drawn]).tolist()) == set(range(12))
    assert all(set(labels.tolist()) == set(range(12)) for _, labels in drawn)


def test_tensors_of_one_kind_of_draw_are_not_alike() -> None:
    for kind in (Inputs.MOVING, Inputs.SORTED):
        first, second = derive(kind, [torch.empty(8, 9), torch.empty(8, 9)], 3)
        assert not torch.equal(first, second)


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_what_is_tiny_throughout_has_no_row_of_another_size(seed: int) -> None:
    for shape in SHAPES:
        drawn = draw(Inputs.FAINT, shape, seed)
        assert float(drawn.abs().min()) > 0
        assert float(drawn.abs().max()) < 1e-3


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_large_rows_lie_past_half_precision_and_some_below_all_that_seems_low(seed: int) -> None:
    for kind, size in ((Inputs.LARGE, 1e6), (Inputs.HUGE, 1e18)):
        rows = draw(kind, (9, 60), seed).amax(-1)
        assert float(rows.max()) > size
        assert float(rows.min()) < -size
        assert int((rows.abs() < 10).sum()) == 3


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_one_element_of_a_row_is_no_number_and_other_rows_are_whole(seed: int) -> None:
    for kind, values in ((Inputs.INFINITE, {"inf", "-inf"}), (Inputs.NAN, {"nan"})):
        rows = draw(kind, (12, 60), seed)
        strange = ~rows.isfinite()
        each = 12 // (len(values) + 1)
        assert sorted(strange.sum(-1).tolist()) == [0] * each + [1] * (12 - each)
        assert {str(float(x)) for x in rows[strange]} == values


def test_integers_are_all_alike_the_least_that_there_are() -> None:
    own = [torch.randint(5, (8, 3)), torch.arange(4)]
    drawn = derive(Inputs.ALIKE, own, 1, [(-100, 4), None])
    assert drawn[0].unique().tolist() == [-100]
    assert torch.equal(drawn[1], own[1])


def test_lines_rise_and_fall() -> None:
    lines = draw(Inputs.SORTED, (8, 30), 4)
    rising = (lines.diff() >= 0).all(-1)
    assert torch.equal(rising, ~(lines.diff() <= 0).all(-1))
    assert 0 < int(rising.sum()) < 8


def test_masks_have_rows_that_are_full_and_rows_that_are_empty() -> None:
    own = [torch.rand(9, 20) > 0.5, torch.rand(9, 20)]
    masks, values = derive(Inputs.MASKS, own, 3)
    assert {0, 20} < set(masks.sum(-1).tolist())
    assert torch.equal(values, own[1])


def test_a_small_running_variance_comes_with_a_small_gain() -> None:
    model = torch.nn.BatchNorm1d(64)
    names = frozenset(name for name, _ in model.named_parameters())
    state = derive_weights(Weights.SHAKEN, model.state_dict(), names, 3)
    assert float(state["running_var"].min()) < 1e-2
    x = torch.randn(50, 64) * state["running_var"].sqrt()
    model.load_state_dict(state)
    with torch.no_grad():
        assert float(model.eval()(x).abs().max()) < 10


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sign", [1, -1])
def test_first_and_last_count_in_a_sum_over_any_block(shape: tuple[int, ...], sign: int) -> None:
    """A reduction over a tensor, or a sample, that leaves out its last rest errs by far."""
    drawn = draw(Inputs.CORNERS if sign > 0 else Inputs.OTHER_CORNERS, shape, 3) * sign
    for block in (drawn, drawn[0]) if len(shape) > 2 else (drawn,):
        flat = block.flatten()
        for corner in (flat[0], flat[-1]):
            assert float(corner) ** 2 > 0.1 * float(flat.square().sum())


def test_biases_of_products_sink_and_those_of_norms_do_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8))
    names = frozenset(name for name, _ in model.named_parameters())
    state = derive_weights(Weights.SUNK, model.state_dict(), names, 3)
    assert bool((state["0.bias"] < -9e3).all())
    assert all(bool((state[x].abs() < 9).all()) for x in ("0.weight", "1.weight", "1.bias"))


def test_a_layer_scale_is_moved_as_one_that_was_learned() -> None:
    state = {"gamma": torch.full((16, 1, 1), 1e-6), "eps": torch.tensor(1e-6)}
    shaken = derive_weights(Weights.SHAKEN, state, frozenset(state), 3)
    assert float(shaken["gamma"].abs().max()) > 0.05
    assert float(shaken["eps"]) < 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_one_index_are_first_of_those_that_mark_padding_most_often(seed: int) -> None:
    own = [torch.randint(500, (24, 13))]
    plain = 2  # draws of 312 elements in which each of 500 comes up
    drawn = derive(Inputs.EVERY, own, seed * MAX_SWEEP + plain, [(0, 499)])[0]
    rows = {int(row[0]) for row in drawn if len(row.unique()) == 1}
    assert {0, 1, 2, 499} <= rows


def test_one_number_of_each_row_is_at_the_edge_and_the_others_on_one_side_of_it() -> None:
    own = [torch.randn(6, 30), torch.randn(6, 30)]
    seen = set()
    for step in range(brink_steps(own, (1.0,))):
        drawn = derive(Inputs.BRINK, own, step, edges=(1.0,))
        at = step % 2
        assert ((drawn[at] == 1).sum(-1) == 1).all()
        others = drawn[at][drawn[at] != 1]
        (aside,) = drawn[1 - at].unique().tolist()
        (around,) = others.unique().tolist()
        seen.add((at, around, aside))
    assert len(seen) == 2 * 2 * 2  # below an edge of one is zero
    assert {around for _, around, _ in seen} == {0.0, 2.0}


def test_what_is_never_below_zero_is_sometimes_zero_and_the_rest_is_the_tasks_own() -> None:
    own = [torch.rand(40, 40), torch.randn(40, 40), torch.rand(40, 40) * 2 - 1]
    ends = ends_of([own])
    assert ends == [(0.0,), (), (-1.0, 1.0)]
    drawn = derive(Inputs.ENDS, own, 3, ends=ends)
    assert 0.4 < (drawn[0] == 0).double().mean() < 0.6
    assert torch.equal(drawn[1], own[1])
    assert torch.equal(drawn[2][drawn[2].abs() < 1], own[2][drawn[2].abs() < 1])


def test_a_range_ends_where_its_table_does_if_own_numbers_come_near() -> None:
    several = [[torch.tensor([3, 900, 985, 3])], [torch.tensor([41, 7, 985, 12])]]
    assert ranges_of(several, [992]) == [(0, 991)]
    assert ranges_of(several, [4000]) == [(0, 985)]
    assert ranges_of([[x + 5000 for x in one] for one in several]) == [(5003, 5985)]


def test_few_numbers_that_are_all_different_by_chance_are_no_permutation() -> None:
    several = [[torch.tensor([5, 1, 3])], [torch.tensor([4, 4, 2])]]
    assert ranges_of(several) == [(1, 5)]
    assert ranges_of([[torch.randperm(8)] for _ in range(9)]) == [None]
    assert ranges_of([[torch.tensor([[3], [1], [3]])]]) == [(1, 3)]


@pytest.mark.parametrize("seed", range(5))
def test_where_integers_hang_on_choices_sizes_are_the_same_throughout(seed: int) -> None:
    own = [torch.randn(12, 40)]
    for kind in (Inputs.LARGE, Inputs.HUGE):
        (x,) = derive(kind, own, seed, even=True)
        rows = x.abs().mean(-1)
        assert rows.max() < 3 * rows.min()
    assert (derive(Inputs.HUGE, own, seed, even=True)[0] < -1e18).all()
