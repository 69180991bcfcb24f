"""Selection of kinds of inputs, and of the number of draws in a sweep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from cuagent.task import load_task, open_reference
from cuagent.verify.inputs.draws import EXTREME_SIZE, FAR_EXTREME_SIZE
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.lines import LineView
from cuagent.verify.inputs.ranges import Range
from cuagent.verify.inputs.reference_runs import ReferenceRuns
from cuagent.verify.inputs.repertoire import Repertoire, repertoire
from cuagent.verify.inputs.seeds import Seeds
from cuagent.verify.inputs.sweeps import SweepCount
from cuagent.verify.oracle.describe import describe
from cuagent.verify.plan import plan
from cuagent.verify.tally import ROUNDS
from cuagent.verify.trace.reference_trace import trace_reference


def suited(
    run: Callable[..., torch.Tensor],
    *own: torch.Tensor,
    call_s: float = 0,
    ranges: tuple[Range | None, ...] = (),
) -> Repertoire:
    """Return the repertoire of a reference with one output."""
    seen = trace_reference(lambda: [run(*own)])
    runs = ReferenceRuns(
        lambda inputs: [run(*inputs)],
        lambda inputs: [run(*(x.double() if x.is_floating_point() else x for x in inputs))],
        discrete=False,
        fits=lambda _, results: all(bool(x.isfinite().all()) for x in results),
    )
    return repertoire(own, ranges or [None] * len(own), seen, runs, call_s)


def test_line_views_match_the_lines_that_the_reference_chooses_from() -> None:
    x = torch.randn(4, 6, 50)
    for run, line_view in (
        (lambda x: x.amax(1), LineView((4, 6, 50), (1,))),
        (lambda x: x.relu().flatten(1).max(-1).values, LineView((4, 300), (1,))),
        (lambda x: x.amax((0, 2)), LineView((4, 6, 50), (0, 2))),
        (lambda x: x.norm(p=float("inf"), dim=2), LineView((4, 6, 50), (2,))),
        (lambda x: x.softmax(1), LineView((4, 6, 50), (1,))),
        (lambda x: x.amax(1).sum() + x.max(), LineView((4, 6, 50), (1,))),
    ):
        found = suited(run, x)
        assert found.line_views == ((line_view,),)
        assert found.sweep_counts[Inputs.MOVING] == SweepCount(
            max(2, line_view.steps), line_view.steps
        )


def test_sweep_is_shortened_for_slow_calls_and_records_the_needed_draws() -> None:
    x = torch.randn(2, 600)
    assert suited(lambda x: x.amax(1), x, call_s=0.01).sweep_counts[Inputs.MOVING] == SweepCount(
        4, 300
    )


def test_reference_without_choices_gets_two_moving_draws() -> None:
    found = suited(lambda x: F.linear(x, x), torch.randn(8, 600))
    assert found.sweep_counts[Inputs.MOVING].made == 2
    assert Inputs.SORTED not in found.kinds
    assert Inputs.SINGLE not in found.kinds
    assert Inputs.NAN in found.kinds
    assert Inputs.NAN not in suited(lambda x: x.sort(-1).values, torch.randn(8, 60)).kinds


def test_any_and_all_need_twice_the_draws() -> None:
    found = suited(lambda x: (x > 0).any(1).float(), torch.randn(10, 60))
    assert found.sweep_counts[Inputs.MOVING].needed == 12
    masked = suited(lambda x, m: (x * m).sum(1), torch.randn(10, 60), torch.ones(10, 60).bool())
    assert masked.sweep_counts[Inputs.SINGLE] == SweepCount(24, 24)  # along either axis


def test_huge_numbers_are_used_if_the_reference_squares_nothing() -> None:
    x = torch.randn(6, 40)
    for run in (lambda x: x.softmax(-1), lambda x: x.amax(-1), lambda x: x.sum(-1)):
        assert Inputs.HUGE in suited(run, x).kinds
    for run in (
        lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True)),
        lambda x: x.std(-1),
        lambda x: torch.fft.rfft(x).abs(),
    ):
        assert Inputs.HUGE not in suited(run, x).kinds


def test_faint_numbers_are_used_if_outputs_keep_their_size() -> None:
    x, bias = torch.randn(6, 40), torch.ones(40)
    for run in (lambda x: (x - x.mean()) / (x.std() + 1e-8), lambda x: x + bias):
        assert Inputs.FAINT in suited(run, x).kinds
    for run in (F.elu, torch.tanh, lambda x: x @ x.T):
        assert Inputs.FAINT not in suited(run, x).kinds


def test_one_tensor_is_faint_if_outputs_would_be_tiny_otherwise() -> None:
    def clipped(weight: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        return weight - gradient / gradient.norm().clamp(min=1)

    own = torch.randn(6, 40), torch.randn(6, 40)
    found = suited(clipped, *own)
    assert (Inputs.FAINT in found.kinds, found.faint) == (True, (0, 1))
    assert found.sweep_counts[Inputs.FAINT] == SweepCount(2, 2)
    weight, gradient = found.drawn(Inputs.FAINT, own, 7, step=1)
    assert 0.1 < gradient.norm() < 0.5
    assert 0.5 < weight.std() < 2
    planned = plan(Seeds(), found.kinds, found.sweep_counts, weights=())
    faint = [t for entry in planned for t in entry.trials if t.kind is Inputs.FAINT]
    assert [trial.step for trial in faint] == [0, 1]
    few = plan(Seeds(), found.kinds, found.sweep_counts, weights=(), large=True)
    assert [t.kind for entry in few for t in entry.trials].count(Inputs.FAINT) == 1


def test_complex_inputs_are_drawn_like_floating_ones() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_real(x * x.conj().roll(1, -1))

    own = torch.randn(6, 40, dtype=torch.complex64)
    found = suited(run, own)
    assert {Inputs.NORMAL, Inputs.FLAT, Inputs.INTEGER} <= set(found.kinds)
    assert Inputs.MOVING not in found.kinds
    (drawn,) = found.drawn(Inputs.INTEGER, (own,), 7)
    parts = torch.view_as_real(drawn)
    assert drawn.dtype is torch.complex64
    assert set(parts.unique().tolist()) == {-2.0, -1.0, 0.0, 1.0, 2.0}


def test_kinds_that_a_task_may_draw_are_used_even_if_the_reference_is_not_finite() -> None:
    x, labels, mask = torch.randn(6, 5), torch.randint(5, (6,)), torch.ones(6, 5).bool()
    loss = suited(F.cross_entropy, x, labels, ranges=(None, (-100, 4)))
    assert {Inputs.ALIKE, Inputs.EXTREMES, Inputs.EVERY} <= set(loss.kinds)
    mean = suited(lambda x, m: (x * m).sum(-1) / m.sum(-1), x, mask)
    assert {Inputs.EMPTY, Inputs.MASKS, Inputs.SINGLE} <= set(mean.kinds)
    assert Inputs.FLAT not in suited(lambda x: x / x.norm(dim=-1, keepdim=True), x).kinds


def test_extremes_are_smaller_if_the_reference_overflows() -> None:
    x = torch.randn(6, 40)
    assert suited(lambda x: x.logsumexp(-1), x).extreme_size == FAR_EXTREME_SIZE
    assert suited(lambda x: x.exp().sum(-1), x).extreme_size == EXTREME_SIZE


def test_every_kind_of_draw_is_in_a_round_of_the_verdict() -> None:
    used = {kind for entry in ROUNDS for kind in (*entry.kinds, *entry.sweeps)}
    assert used == set(Inputs)


STALLING = """
import time

import torch

calls = {first}


class Model(torch.nn.Module):
    def forward(self, x):
        global calls
        calls += 1
        if calls % 2:
            time.sleep(0.1)
        return x.amax(1)


def get_inputs():
    return [torch.randn(40, 600)]
"""


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_calls_that_stall_do_not_shorten_the_sweeps(first: int, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(STALLING.format(first=first))
    with torch.no_grad():
        found = describe(open_reference(load_task(str(tmp_path / "task.py"), device="cpu")))
    assert found.facts.sweep_counts[Inputs.MOVING] == SweepCount(15, 15)


BOUNDED = """
import torch

class Model(torch.nn.Module):
    def forward(self, score, share):
        return torch.nn.functional.softplus(score) * torch.log1p(-share)

def get_inputs():
    return [torch.randn(8, 16), torch.rand(8, 16) * 0.9]

def get_init_inputs():
    return []
"""


def test_inputs_of_a_limited_domain_do_not_keep_others_from_unusual_sizes(tmp_path: Path) -> None:
    path = tmp_path / "bounded.py"
    path.write_text(BOUNDED)
    found = describe(open_reference(load_task(str(path), device="cpu"))).repertoire
    own = [torch.randn(8, 16), torch.rand(8, 16) * 0.9]
    for kind in (Inputs.MIXED, Inputs.OFFSET, Inputs.LARGE):
        assert kind in found.kinds
        score, share = found.drawn(kind, own, seed=5)
        assert share is own[1]
        assert score.abs().max() > 100


def test_references_that_shift_along_two_axes_get_no_numbers_past_a_million() -> None:
    def steps(x: torch.Tensor) -> torch.Tensor:
        return (x - x.logsumexp(1, keepdim=True)).softmax(2)

    x = torch.randn(2, 8, 8)
    assert {Inputs.LARGE, Inputs.HUGE}.isdisjoint(suited(steps, x).kinds)
    assert Inputs.LARGE in suited(lambda x: x.softmax(2), x).kinds


def test_flat_rows_of_counts_are_zero_or_repeat_a_count(tmp_path: Path) -> None:
    """A reference that is undefined for negative numbers gets whole rows of zeros all the same."""
    path = tmp_path / "task.py"
    path.write_text(COUNTS)
    found = describe(open_reference(load_task(str(path), device="cpu"))).repertoire
    assert Inputs.FLAT in found.kinds
    own = [torch.poisson(torch.full((24, 30), 0.7))]
    (drawn,) = found.drawn(Inputs.FLAT, own, 3)
    assert bool((drawn == 0).all(1).any())
    assert bool((drawn >= 0).all())
    assert torch.equal(drawn, drawn.round()), "each number is a count"
    changed = (drawn != own[0]).any(1)
    assert bool((drawn[changed] == drawn[changed][:, :1]).all())
    path.write_text(COUNTS.replace(".clamp(min=1)", ""))
    strict = describe(open_reference(load_task(str(path), device="cpu"))).repertoire
    assert Inputs.FLAT not in strict.kinds, "the reference divides by zero"


COUNTS = """
import torch

class Model(torch.nn.Module):
    def forward(self, counts):
        share = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
        return torch.xlogy(share, share).sum(dim=1)

def get_inputs():
    return [torch.poisson(torch.full((24, 30), 0.7))]

def get_init_inputs():
    return []
"""


def test_draws_of_a_module_without_weights_name_none() -> None:
    def names(*weights: str) -> list[str]:
        counts = dict.fromkeys(Inputs, SweepCount(2, 2))
        rounds = plan(Seeds(), list(Inputs), counts, weights=weights)
        return [trial.name for planned in rounds for trial in planned.draws]

    assert "flat rows, shaken weights" in names("weight")
    assert not [name for name in names() if "weights" in name]
    assert "flat rows" in names()
    assert "halves" in names(), "a sweep"
