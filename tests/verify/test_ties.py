"""Indices among equal elements: the rule admits those that the oracle finds to be tied."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from cuagent.task import Precision
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.oracle.client import TIE_PAIRS
from cuagent.verify.oracle.places import NearTies, find_places, keeps_first, roundoff_chooses
from cuagent.verify.rules.bounds import represents
from cuagent.verify.rules.ties import Places, places_of, wrong_places
from cuagent.verify.rules.tolerance import strict
from cuagent.verify.rules.types import Expected
from cuagent.verify.trace.reductions import Terms
from cuagent.verify.trace.reference_trace import trace_reference

Run = Callable[[torch.Tensor], torch.Tensor]
TIED = torch.tensor([[1.0, 3.0, 0.0, 3.0, 3.0], [2.0, 2.0, 5.0, 1.0, 2.0]])


def passes(run: Run, x: torch.Tensor, output: torch.Tensor) -> bool:
    """Return True if the rule accepts `output` for the indices that `run` gives."""
    declared = trace_reference(lambda: [run(x)])
    exact = trace_reference(lambda: [run(x.double())])
    moved = [trace_reference(lambda: [run(x.double() * (1 + 1e-6))])]
    right = exact.outputs[0]
    expected = Expected(
        declared.outputs, [right], [torch.ones_like(right)], find_places(exact, declared, moved)
    )
    return strict([output], expected, Inputs.TIES, Terms.of(1)).passed


def test_any_tied_index_passes_and_no_other() -> None:
    for place in range(5):
        given = torch.tensor([[place], [2]])
        assert passes(lambda x: x.topk(1)[1], TIED, given) == (place in (1, 3, 4))
    assert not passes(lambda x: x.argmax(-1), TIED, torch.tensor([10**12, 2]))


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.argmax(-1),
        lambda x: (-x).argmin(-1),
        lambda x: x.max(-1).indices,
        lambda x: (-2 * x).min(-1).indices,
        lambda x: x.t().argmax(0),
        lambda x: x.int().max(1)[1],
    ],
)
def test_only_the_first_of_equal_elements_is_right_where_torch_documents_it(run: Run) -> None:
    for place in range(5):
        assert passes(run, TIED, torch.tensor([place, 2])) == (place == 1)


def test_order_of_saturated_elements_is_free_and_that_of_flags_is_not() -> None:
    large = torch.tensor([[-2000.0, 1500.0, 3000.0, -4000.0], [0.0, 1.0, 2.0, 3.0]])
    for run, free in (
        (lambda x: x.sigmoid().argmax(-1), True),
        (lambda x: x.tanh().max(-1).indices, True),
        (lambda x: x.clamp(-1.0, 1.0).argmax(-1), False),
        (lambda x: (x > 0.5).to(x.dtype).argmax(-1), False),
        (lambda x: (x > 0.5).float().argmax(-1), False),
        (lambda x: (x > 0.5).int().argmax(-1), False),
    ):
        right = run(large)
        assert passes(run, large, torch.tensor([2, int(right[1])])) is free
        assert passes(run, large, right)


def test_any_of_elements_passes_that_are_equal_only_in_one_precision() -> None:
    thirds: Run = lambda x: (x / 3 + 1e9).argmax(-1)  # noqa: E731
    for place in (1, 3, 4):
        assert passes(thirds, TIED, torch.tensor([place, 2]))
    inside: Run = lambda x: (x.float() / 3).argmax(-1)  # noqa: E731
    assert passes(inside, TIED, torch.tensor([4, 2])), "the same precision in both runs"


def test_near_tie_has_the_size_of_roundoff() -> None:
    near = TIED.clone()
    near[0, 3] += 1e-6
    for place, right in ((1, True), (3, True), (0, False)):
        assert passes(lambda x: x.argmax(-1), near, torch.tensor([place, 2])) == right
    near[0, 3] += 1e-3
    assert not passes(lambda x: x.argmax(-1), near, torch.tensor([1, 2]))


@pytest.mark.parametrize("mark", [-1e9, torch.finfo(torch.float32).min])
def test_mask_fill_does_not_make_other_elements_tie(mark: float) -> None:
    hidden = TIED.clone()
    hidden[0, 2:4] = mark
    for place, right in ((1, True), (4, True), (0, False), (2, False)):
        best: Run = lambda x: x.topk(1)[1].squeeze(-1)  # noqa: E731
        assert passes(best, hidden, torch.tensor([place, 2])) == right
    # Mask fills tie with each other, even if they differ by roundoff.
    near = torch.tensor([[mark, 1.0, mark * (1 - 2e-7)]])
    assert passes(lambda x: x.argsort(-1), near, torch.tensor([[2, 0, 1]]))


def test_indices_of_one_sorted_line_must_be_distinct() -> None:
    order = torch.tensor([[2, 0, 4, 1, 3], [3, 4, 1, 0, 2]])
    assert passes(lambda x: x.argsort(-1), TIED, order)
    order[0, 3] = 4
    assert not passes(lambda x: x.argsort(-1), TIED, order)


def test_stable_sort_must_keep_the_order_of_equals() -> None:
    stable: Run = lambda x: torch.sort(x, stable=True, dim=-1)[1]  # noqa: E731
    assert passes(stable, TIED, torch.tensor([[2, 0, 1, 3, 4], [3, 0, 1, 4, 2]]))
    assert not passes(stable, TIED, torch.tensor([[2, 0, 3, 1, 4], [3, 0, 1, 4, 2]]))


def test_index_must_be_in_its_pooling_window_or_prefix() -> None:
    pooled: Run = lambda x: F.max_pool1d(x, 2, stride=2, return_indices=True)[1]  # noqa: E731
    assert passes(pooled, TIED, torch.tensor([[1, 3], [1, 2]]))
    assert not passes(pooled, TIED, torch.tensor([[3, 3], [1, 2]]))
    so_far: Run = lambda x: torch.cummax(x, -1)[1]  # noqa: E731
    assert passes(so_far, TIED, torch.tensor([[0, 1, 1, 1, 3], [0, 0, 2, 2, 2]]))
    assert not passes(so_far, TIED, torch.tensor([[0, 3, 1, 1, 3], [0, 0, 2, 2, 2]]))


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.topk(2, dim=0)[1][:1, 1:].to(torch.int32),
        lambda x: x.argmax(0, keepdim=True)[:, 1:].to(torch.int32),
        lambda x: x.t().max(-1).indices.unsqueeze(0).split(1, dim=1)[1],
    ],
)
def test_indices_are_traced_through_views_and_dtypes(run: Run) -> None:
    x = torch.tensor([[0.0, 1, 2, 3, 4], [9, 1, 1, 1, 1], [9, 1 - 2**-24, 0, 0, 0]])
    given = run(x).clone()
    given[0, 0] = 2
    assert passes(run, x, given)
    x[2, 1] = 0
    assert not passes(run, x, given)


def test_count_of_exact_comparisons_has_no_near_ties() -> None:
    x = torch.tensor([[0.5, 1.0, 0.5, 0.25]])
    for run, moves in (
        (lambda x: (x > 0.5).sum(-1), False),
        (lambda x: (x / 0.7 > 0.5 / 0.7).sum(-1), True),
        (lambda x: x.argmax(-1) + (x > 0.5).sum(-1), False),
        (lambda x: x.topk(1)[1].sum(-1) + (x > 0.5).sum(-1), True),
    ):
        exact, declared = (
            trace_reference(lambda r=run: [r(x.double())]),
            trace_reference(lambda r=run: [r(x)]),
        )
        near, spread = NearTies(1, Precision.MATCH, TIE_PAIRS), [torch.zeros(1).long()]
        inputs = near.perturbed([x.double()], torch.Generator().manual_seed(1), exact)
        near.find(
            exact, declared, (trace_reference(lambda w=w, r=run: [r(*w)]) for w in inputs), spread
        )
        assert bool(spread[0].any()) == moves


@pytest.mark.parametrize(
    ("run", "moves"),
    [(lambda x: (x > 0).sum(-1), False), (lambda x: x.argmax(-1) + 1, True)],
)
def test_zeros_tie_for_an_index_but_not_for_a_count(run: Run, moves: bool) -> None:
    x = torch.tensor([[0.0, 0.0, -1.0, 0.0]])
    exact, spread = trace_reference(lambda: [run(x.double())]), [torch.zeros(1).long()]
    near = NearTies(1, Precision.MATCH, TIE_PAIRS)
    inputs = near.perturbed([x.double()], torch.Generator().manual_seed(1), exact)
    near.find(exact, exact, (trace_reference(lambda w=w: [run(*w)]) for w in inputs), spread)
    assert bool(spread[0].any()) == moves


@pytest.mark.parametrize(
    ("number", "defined"), [(3.7, True), (-128.9, True), (128.0, False), (math.nan, False)]
)
def test_cast_beyond_the_integer_range_is_detected(number: float, defined: bool) -> None:
    x = torch.tensor([0.0, number])
    seen = trace_reference(lambda: [x.to(torch.int8).float()])
    assert seen.casts
    assert seen.defined is defined
    assert not trace_reference(lambda: [x > 0]).casts


def line_of(values: list[float], slack: tuple[float, float], fill: float = math.inf) -> Places:
    """Return one line of elements of which one index is chosen, without windows."""
    return Places(
        values=torch.tensor([values]).double(),
        slack=torch.tensor([slack]).double(),
        fill_sizes=torch.tensor([fill]).double(),
        line=torch.tensor([0]),
        sizes=torch.tensor([len(values)]),
        low=torch.zeros(0, dtype=torch.long),
        high=torch.zeros(0, dtype=torch.long),
        distinct=torch.tensor([False]),
        first=torch.tensor([False]),
    )


def accepted(places: Places, right: int, declared: int | None = None) -> list[int]:
    """Return the indices from -1 to one past the line that the rule accepts."""
    count = places.values.shape[1]
    reference = torch.tensor([right if declared is None else declared])
    return [
        index
        for index in range(-1, count + 1)
        if not wrong_places(torch.tensor([index]), reference, torch.tensor([right]), places).any()
    ]


def test_indices_within_the_slack_are_tied() -> None:
    values = [1.0, 1.25, 1.5, 3.0]
    assert accepted(line_of(values, (0.25, 9.0)), 0) == [0, 1]
    assert accepted(line_of(values, (0.0, 9.0)), 0) == [0]
    assert accepted(line_of([1.0, 1.0, 2.0], (0.0, 0.0)), 0) == [0, 1]
    assert accepted(line_of([1.0, 1.0, 2.0], (-1.0, -1.0)), 0) == [0]
    assert accepted(line_of(values, (0.0, 0.0)), 0, declared=3) == [0, 3]


def test_slack_of_a_mask_fill_holds_where_either_element_is_one() -> None:
    values = [-1e4, -1e4 + 5, 2.0]
    assert accepted(line_of(values, (0.0, 10.0), fill=1e4), 0) == [0, 1]
    assert accepted(line_of(values, (0.0, 10.0), fill=1e4), 1) == [0, 1]
    assert accepted(line_of(values, (0.0, 10.0), fill=2e4), 0) == [0]


def test_window_limits_the_tied_indices_in_each_dimension() -> None:
    flat = line_of([1.0] * 6, (0.0, 0.0))
    for low, high, inside in (((0, 1), (1, 1), [1, 4]), ((1, 0), (1, 2), [3, 4, 5])):
        window = Places(
            *flat.tensors[:4],
            sizes=torch.tensor([2, 3]),
            low=torch.tensor([low]),
            high=torch.tensor([high]),
            distinct=flat.distinct,
            first=flat.first,
        )
        assert accepted(window, inside[0]) == inside


def test_lists_of_places_are_rebuilt_from_their_tensors() -> None:
    one, two = line_of([1.0, 2.0], (0.0, 0.0)), line_of([3.0], (0.5, 0.5))
    rebuilt = places_of([*one.tensors, *two.copied().tensors])
    assert [len(places.tensors) for places in rebuilt] == [9, 9]
    for before, after in zip((one, two), rebuilt, strict=True):
        assert all(map(torch.equal, before.tensors, after.tensors))


def test_distinct_indices_may_repeat_in_other_lines_only() -> None:
    two_lines = Places(
        values=torch.ones(3, 4).double(),
        slack=torch.zeros(3, 2).double(),
        fill_sizes=torch.full((3,), math.inf).double(),
        line=torch.tensor([0, 0, 1, 1, 2, 2]),
        sizes=torch.tensor([4]),
        low=torch.zeros(0, dtype=torch.long),
        high=torch.zeros(0, dtype=torch.long),
        distinct=torch.tensor([True]),
        first=torch.tensor([False] * 3),
    )
    right = torch.tensor([0, 1, 0, 1, 0, 1])
    for given, wrong in (
        ([2, 3, 3, 2, 1, 0], []),
        ([2, 2, 3, 3, 1, 0], [0, 1, 2, 3]),
        ([3, 0, 0, 3, 1, 1], [4, 5]),
    ):
        found = wrong_places(torch.tensor(given), right, right, two_lines)
        assert found.nonzero().flatten().tolist() == wrong


@pytest.mark.parametrize(
    ("row", "chooses"),
    [
        ([0.5, 0.3, 0.1, 0.1], False),
        ([0.5, 0.3, 0.3, 0.1], False),
        ([0.5, 0.3, 0.3 * (1 - 1e-8), 0.1], True),
        ([0.9, 1e-47, 1e-49, 0.0], True),
        ([0.9, 0.0, 0.0, 0.0], False),
    ],
)
def test_roundoff_chooses_only_between_different_numbers_as_near_as_its_error(
    row: list[float], chooses: bool
) -> None:
    """Equal numbers have an order; numbers that underflow are as near as the zero they become."""
    x = torch.tensor([[*row], [4.0, 3.0, 2.0, 1.0]], dtype=torch.float64)
    exact = trace_reference(lambda: [x.topk(2)[1]])
    declared = trace_reference(lambda: [x.float().topk(2)[1]])
    assert roundoff_chooses(exact, declared) == chooses


def test_first_of_equal_integers_must_be_chosen() -> None:
    keys = torch.tensor([[1, 2, 2], [0, 0, 0]])
    for run, kept in (
        (lambda x: x.argmax(-1) + 1, True),
        (lambda x: (x == 2).int().argmax(-1) + 1, True),
        (lambda x: x.topk(1)[1] + 1, False),
    ):
        traces = [trace_reference(lambda r=run: [r(keys)]) for _ in range(2)]
        assert keeps_first(*traces, Precision.MATCH) is kept


def test_coarse_precision_decides_only_by_numbers_that_it_represents() -> None:
    for number, precisions in (
        (127.5, {Precision.MATCH, Precision.FP32, Precision.TF32, Precision.FP16, Precision.BF16}),
        (128.5, {Precision.MATCH, Precision.FP32, Precision.TF32, Precision.FP16}),
        (1024.5, {Precision.MATCH, Precision.FP32}),
    ):
        x = torch.tensor([[number, 0.0, number, -1.5]])
        exact = trace_reference(lambda x=x: [x.double().argmax(-1)])
        declared = trace_reference(lambda x=x: [x.argmax(-1)])
        assert {p for p in Precision if keeps_first(exact, declared, p)} == precisions
        assert {p for p in Precision if represents(p, x)} == precisions


def test_divisors_of_remainders_and_their_halves_are_thresholds() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.remainder(x + 3.0, 6.0) - 3.0

    trace = trace_reference(lambda: [run(torch.randn(3, 4))])
    assert set(trace.thresholds) == {-6.0, -3.0, 3.0, 6.0}
    assert trace.edges == ()
