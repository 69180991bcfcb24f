"""Kinds of inputs and weights: each shows its class of bugs on every seed."""

from __future__ import annotations

import pytest
import torch

from cuagent.verify.inputs.derive import brink_steps, derive
from cuagent.verify.inputs.kinds import MAX_SWEEP, Inputs
from cuagent.verify.inputs.lines import LineView
from cuagent.verify.inputs.ranges import ends_of, ranges_of
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.weights import Weights, derive_weights, shared_names

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
"""Kinds that do not change floating tensors."""
SHAPES = [(7, 60), (2, 9), (4, 8, 6, 5), (1, 16, 12), (300,)]


def draw(kind: Inputs, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return derive(kind, [torch.empty(shape)], seed)[0]


def test_derived_inputs_keep_integers_and_depend_on_the_seed() -> None:
    own = [torch.rand(6, 5), torch.arange(4), torch.rand(3, dtype=torch.float64)]
    for kind in Inputs:
        first, second = derive(kind, own, 1, step=1), derive(kind, own, 2, step=2)
        assert torch.equal(first[1], own[1])
        assert [x.dtype for x in first] == [x.dtype for x in own]
        if kind not in OTHER_TYPES:
            assert not torch.equal(first[0], second[0])


def test_extreme_indices_have_the_range_of_the_task_and_spare_offsets_and_permutations() -> None:
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


def test_shaken_weights_change_norms_and_keep_constant_buffers() -> None:
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
def test_rows_differ_by_the_full_range_on_every_seed(shape: tuple[int, ...], seed: int) -> None:
    """Otherwise one maximum or one shift for all rows would pass on some seeds."""
    mixed = draw(Inputs.MIXED, shape, seed).flatten(1).abs().amax(-1)
    assert mixed.max() > 1000 * mixed.min()
    far = draw(Inputs.LEVELS, shape, seed)[..., 0]
    assert (far.max(), far.min()) == (pytest.approx(5e4, rel=0.01), pytest.approx(-5e4, rel=0.01))


@pytest.mark.parametrize("seed", SEEDS)
def test_some_samples_are_small_or_flat_as_a_whole(seed: int) -> None:
    """The epsilon of a norm over a sample matters only if no row of the sample is large."""
    samples = draw(Inputs.MIXED, (4, 8, 6, 5), seed).flatten(1)
    assert float(samples.abs().amax(1).min()) < 0.05
    assert any(len(sample.unique()) == 1 for sample in draw(Inputs.FLAT, (4, 8, 6, 5), seed))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_flat_draw_has_a_zero_row(shape: tuple[int, ...]) -> None:
    for seed in SEEDS:
        assert not bool(draw(Inputs.FLAT, shape, seed).any(-1).all())


@pytest.mark.parametrize("axis", [0, 1])
def test_maximum_that_omits_an_end_is_wrong_on_every_seed(axis: int) -> None:
    for seed in SEEDS:
        for kind in (Inputs.EDGES, Inputs.OTHER_EDGES):
            lines = draw(kind, (24, 33), seed).movedim(axis, -1)
            for short in (lines[..., 1:], lines[..., :-1]):
                assert not torch.equal(short.amax(-1), lines.amax(-1))
                assert not torch.equal(short.amin(-1), lines.amin(-1))


def test_exp_overflows_if_the_maximum_omits_a_far_extreme() -> None:
    for seed in SEEDS:
        lines = draw(Inputs.FAR_EDGES, (24, 33), seed)
        for short in (lines[:, 1:], lines[:, :-1]):
            assert bool((lines - short.amax(-1, keepdim=True)).exp().isinf().any())


def test_opposed_offsets_alternate_between_tensors() -> None:
    own = [torch.empty(9, 20), torch.arange(3), torch.empty(9, 20), torch.empty(4)]
    means = [float(x.float().mean()) for x in derive(Inputs.OPPOSED, own, 3)]
    assert means == pytest.approx([1e3, 1, -1e3, 1e3], abs=5)


def test_integer_gains_and_slopes_include_two() -> None:
    state = {"slope": torch.tensor([0.25]), "gain": torch.ones(40), "matrix": torch.ones(9, 9)}
    drawn = derive_weights(Weights.INTEGER, state, frozenset(state), 3)
    assert drawn["slope"].tolist() == [2]
    assert set(drawn["gain"].tolist()) == {-2, -1, 0, 1, 2}
    assert set(drawn["matrix"].flatten().tolist()) == {-1, 0, 1}


def test_single_line_has_its_largest_value_first_or_last() -> None:
    places = {int(draw(k, (300,), 1).argmax()) for k in (Inputs.EDGES, Inputs.OTHER_EDGES)}
    assert places == {0, 299}


@pytest.mark.parametrize(
    ("shape", "line_view"),
    [
        ((5, 30), LineView((5, 30), (1,))),
        ((30, 4), LineView((30, 4), (0,))),
        ((3, 2, 4, 5), LineView((3, 2, 4, 5), (1, 2, 3))),
        ((6, 20), LineView((12, 10), (1,))),
        ((17,), LineView((17,), (0,))),
    ],
)
def test_moving_extremes_visit_every_place_in_the_least_number_of_draws(
    shape: tuple[int, ...], line_view: LineView
) -> None:
    """A maximum that omits any one place is then wrong; `any` and `all` need twice the draws."""
    largest, least, above, below = set(), set(), set(), set()
    for step in range(2 * line_view.steps):
        lines = line_view.lines(
            derive(
                Inputs.MOVING,
                [torch.empty(shape)],
                5 * MAX_SWEEP + step,
                (),
                [[line_view]],
                step=step,
            )[0]
        )
        if step < line_view.steps:
            largest |= set(lines.argmax(1).tolist())
            least |= set(lines.argmin(1).tolist())
        above |= {int(line.argmax()) for line in lines if (line > 0).sum() == 1}
        below |= {int(line.argmin()) for line in lines if (line < 0).sum() == 1}
    assert largest == least == above == below == set(range(line_view.places))


def test_audit_repeats_the_draws_of_a_sweep() -> None:
    first = Seeds()
    made = first.draw_several(7)
    assert [seed % MAX_SWEEP for seed in made] == list(range(7))
    assert len({seed // MAX_SWEEP for seed in made}) == 1
    assert Seeds(first.drawn).draw_several(99) == made


def test_single_masks_set_and_clear_each_place_alone() -> None:
    sets, clears = set(), set()
    for step in range(2 * 6):
        flags, values = derive(
            Inputs.SINGLE,
            [torch.ones(2, 12).bool(), torch.ones(3)],
            9 * MAX_SWEEP + step,
            step=step,
        )
        sets |= {int(line.long().argmax()) for line in flags if line.sum() == 1}
        clears |= {int(line.long().argmin()) for line in flags if line.sum() == 11}
        assert torch.equal(values, torch.ones(3))
    assert sets == clears == set(range(12))


def test_every_index_visits_all_values_and_only_the_least_negative_one() -> None:
    own, ranges = [torch.zeros(4, 5).long()], [(-100, 50)]
    seen = [
        derive(Inputs.EVERY, own, 7 * MAX_SWEEP + step, ranges, step=step)[0] for step in range(3)
    ]
    assert set(torch.cat(seen).flatten().tolist()) == {-100, *range(51)}


def test_every_index_ends_with_rows_of_one_index() -> None:
    own, ranges = [torch.zeros(4, 5).long(), torch.zeros(20).long()], [(0, 11), (0, 11)]
    drawn = [
        derive(Inputs.EVERY, own, 7 * MAX_SWEEP + step, ranges, step=step) for step in range(1, 4)
    ]
    assert all(bool((rows == rows[:, :1]).all()) for rows, _ in drawn)
    assert set(torch.cat([rows[:, 0] for rows, _ in drawn]).tolist()) == set(range(12))
    assert all(set(labels.tolist()) == set(range(12)) for _, labels in drawn)


def test_tensors_of_one_draw_differ() -> None:
    for kind in (Inputs.MOVING, Inputs.SORTED):
        first, second = derive(kind, [torch.empty(8, 9), torch.empty(8, 9)], 3)
        assert not torch.equal(first, second)


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_faint_numbers_have_no_row_of_another_size(seed: int) -> None:
    for shape in SHAPES:
        drawn = draw(Inputs.FAINT, shape, seed)
        assert float(drawn.abs().min()) > 0
        assert float(drawn.abs().max()) < 1e-3


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_large_rows_exceed_half_precision_and_some_are_very_negative(seed: int) -> None:
    for kind, size in ((Inputs.LARGE, 1e6), (Inputs.HUGE, 1e18)):
        rows = draw(kind, (9, 60), seed).amax(-1)
        assert float(rows.max()) > size
        assert float(rows.min()) < -size
        assert int((rows.abs() < 10).sum()) == 3


@pytest.mark.parametrize("seed", SEEDS[:5])
def test_rows_have_at_most_one_nan_or_infinity(seed: int) -> None:
    for kind, values in ((Inputs.INFINITE, {"inf", "-inf"}), (Inputs.NAN, {"nan"})):
        rows = draw(kind, (12, 60), seed)
        strange = ~rows.isfinite()
        each = 12 // (len(values) + 1)
        assert sorted(strange.sum(-1).tolist()) == [0] * each + [1] * (12 - each)
        assert {str(float(x)) for x in rows[strange]} == values


def test_one_index_throughout_is_the_least_of_the_range() -> None:
    own = [torch.randint(5, (8, 3)), torch.arange(4)]
    drawn = derive(Inputs.ALIKE, own, 1, [(-100, 4), None])
    assert drawn[0].unique().tolist() == [-100]
    assert torch.equal(drawn[1], own[1])


def test_sorted_lines_rise_and_fall() -> None:
    lines = draw(Inputs.SORTED, (8, 30), 4)
    rising = (lines.diff() >= 0).all(-1)
    assert torch.equal(rising, ~(lines.diff() <= 0).all(-1))
    assert 0 < int(rising.sum()) < 8


def test_masks_have_full_rows_and_empty_rows() -> None:
    own = [torch.rand(9, 20) > 0.5, torch.rand(9, 20)]
    masks, values = derive(Inputs.MASKS, own, 3)
    assert {0, 20} < set(masks.sum(-1).tolist())
    assert torch.equal(values, own[1])


def test_small_running_variance_has_a_small_gain() -> None:
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
def test_first_and_last_element_matter_in_a_sum_over_any_block(
    shape: tuple[int, ...], sign: int
) -> None:
    """A reduction over a tensor or a sample that omits its remainder has a large error."""
    drawn = draw(Inputs.CORNERS if sign > 0 else Inputs.OTHER_CORNERS, shape, 3) * sign
    for block in (drawn, drawn[0]) if len(shape) > 2 else (drawn,):
        flat = block.flatten()
        for corner in (flat[0], flat[-1]):
            assert float(corner) ** 2 > 0.1 * float(flat.square().sum())


def test_sunk_weights_lower_biases_of_products_but_not_of_norms() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8))
    names = frozenset(name for name, _ in model.named_parameters())
    state = derive_weights(Weights.SUNK, model.state_dict(), names, 3)
    assert bool((state["0.bias"] < -9e3).all())
    assert all(bool((state[x].abs() < 9).all()) for x in ("0.weight", "1.weight", "1.bias"))


def test_shaken_weights_change_a_tiny_layer_scale_to_usual_size() -> None:
    state = {"gamma": torch.full((16, 1, 1), 1e-6), "eps": torch.tensor(1e-6)}
    shaken = derive_weights(Weights.SHAKEN, state, frozenset(state), 3)
    assert float(shaken["gamma"].abs().max()) > 0.05
    assert float(shaken["eps"]) < 1e-5


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_one_index_start_with_likely_padding_indices(seed: int) -> None:
    own = [torch.randint(500, (24, 13))]
    plain = 2  # steps of 312 elements in which each of 500 values occurs
    drawn = derive(Inputs.EVERY, own, seed * MAX_SWEEP + plain, [(0, 499)], step=plain)[0]
    rows = {int(row[0]) for row in drawn if len(row.unique()) == 1}
    assert {0, 1, 2, 499} <= rows


def test_brink_puts_one_number_of_each_row_at_the_edge() -> None:
    own = [torch.randn(6, 30), torch.randn(6, 30)]
    seen = set()
    for step in range(brink_steps(own, (1.0,))):
        drawn = derive(Inputs.BRINK, own, step, edges=(1.0,), step=step)
        at = step % 2
        assert ((drawn[at] == 1).sum(-1) == 1).all()
        others = drawn[at][drawn[at] != 1]
        (aside,) = drawn[1 - at].unique().tolist()
        (around,) = others.unique().tolist()
        seen.add((at, around, aside))
    assert len(seen) == 2 * 2 * 2  # the number below an edge of 1 is 0
    assert {around for _, around, _ in seen} == {0.0, 2.0}


def test_ends_of_the_domain_replace_half_of_the_own_numbers() -> None:
    own = [torch.rand(40, 40), torch.randn(40, 40), torch.rand(40, 40) * 2 - 1]
    ends = ends_of([own])
    assert ends == [(0.0,), (), (-1.0, 1.0)]
    drawn = derive(Inputs.ENDS, own, 3, ends=ends)
    assert 0.4 < (drawn[0] == 0).double().mean() < 0.6
    assert torch.equal(drawn[1], own[1])
    assert torch.equal(drawn[2][drawn[2].abs() < 1], own[2][drawn[2].abs() < 1])


def test_range_extends_to_the_end_of_its_table_if_own_numbers_are_near() -> None:
    several = [[torch.tensor([3, 900, 985, 3])], [torch.tensor([41, 7, 985, 12])]]
    assert ranges_of(several, [992]) == [(0, 991)]
    assert ranges_of(several, [4000]) == [(0, 985)]
    assert ranges_of([[x + 5000 for x in one] for one in several]) == [(5003, 5985)]


def test_few_distinct_numbers_are_not_taken_for_a_permutation() -> None:
    several = [[torch.tensor([5, 1, 3])], [torch.tensor([4, 4, 2])]]
    assert ranges_of(several) == [(1, 5)]
    assert ranges_of([[torch.randperm(8)] for _ in range(9)]) == [None]
    assert ranges_of([[torch.tensor([[3], [1], [3]])]]) == [(1, 3)]


@pytest.mark.parametrize("seed", range(5))
def test_uniform_scale_gives_rows_of_one_size(seed: int) -> None:
    own = [torch.randn(12, 40)]
    for kind in (Inputs.LARGE, Inputs.HUGE):
        (x,) = derive(kind, own, seed, uniform_scale=True)
        rows = x.abs().mean(-1)
        assert rows.max() < 3 * rows.min()
    assert (derive(Inputs.HUGE, own, seed, uniform_scale=True)[0] < -1e18).all()


def test_complex_weights_change_in_both_parts() -> None:
    state = {"gain": torch.ones(30, dtype=torch.complex64)}
    shaken = derive_weights(Weights.SHAKEN, state, frozenset(state), 7)["gain"]
    assert shaken.real.std() > 0.1
    assert shaken.imag.std() > 0.1
    whole = derive_weights(Weights.INTEGER, state, frozenset(state), 7)["gain"]
    assert set(whole.imag.tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}


def test_names_of_shared_weights_are_found() -> None:
    one, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    other.weight = one.weight
    both = torch.nn.ModuleDict({"one": one, "other": other})
    assert shared_names(both.state_dict()) == {"one.weight", "other.weight"}
