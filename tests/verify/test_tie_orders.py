"""Tests of tie orders: any one order of equal elements is right, for the whole answer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from shares import slow_after

from cuagent.task import load_task
from cuagent.verify import Referee
from cuagent.verify.inputs.kinds import Inputs
from cuagent.verify.inputs.weights import Weights
from cuagent.verify.oracle import sensitivity
from cuagent.verify.oracle.tie_orders import TieOrder, ordered

FIRST, LAST, FROM_THE_THIRD = TieOrder(0.0, -1), TieOrder(0.0, 1), TieOrder(0.5, -1)
EQUALS = torch.tensor([[1.0, 2.0, 2.0, 2.0], [3.0, 3.0, 0.0, 3.0]])
HOT = Path(__file__).parents[1] / "corpus" / "tasks" / "hot.py"


def test_operators_choose_among_equal_elements_by_the_order() -> None:
    for order, best, two in (
        (FIRST, [1, 0], [[1, 2], [0, 1]]),
        (LAST, [3, 3], [[3, 2], [3, 1]]),
        (FROM_THE_THIRD, [2, 3], [[2, 3], [3, 0]]),
    ):
        with ordered(order):
            assert EQUALS.argmax(-1).tolist() == best
            values, places = EQUALS.topk(2, -1)
            assert EQUALS.max(-1, keepdim=True).values.tolist() == [[2.0], [3.0]]
            assert torch.sort(EQUALS[1], stable=True).indices.tolist() == [2, 0, 1, 3]
        assert places.tolist() == two
        assert values.tolist() == [[2.0, 2.0], [3.0, 3.0]]


def test_pooling_and_cummax_choose_by_the_order() -> None:
    with ordered(LAST):
        values, places = F.max_pool1d(EQUALS[None], 2, return_indices=True)
        so_far = torch.cummax(EQUALS[0], 0)
    assert values.tolist() == [[[2.0, 2.0], [3.0, 3.0]]]
    assert places.tolist() == [[[1, 3], [1, 3]]]
    assert so_far.values.tolist() == EQUALS[0].tolist()


def test_nearly_equal_elements_are_ordered_within_a_slack() -> None:
    near = torch.tensor([1.0, 1.0 + 1e-6, 0.5])
    with ordered(FIRST, 1e-5):
        assert int(near.argmax()) == 0
    with ordered(FIRST, 1e-8):
        assert int(near.argmax()) == 1


def test_mask_fill_does_not_make_other_elements_equal() -> None:
    hidden = torch.tensor([1.0, 1.0 + 1e-6, 0.5, 1e9, 1e9 * (1 + 1e-7)])
    with ordered(FIRST, 1e-5):
        assert hidden.argsort().tolist() == [2, 1, 0, 4, 3]
        assert int(F.max_pool2d(-hidden.view(1, 1, 1, 5), (1, 5), return_indices=True)[1]) == 2


@pytest.mark.parametrize("precision", slow_after(1, ["match", "fp32"]))
@pytest.mark.parametrize("documented", [True, False])
def test_choice_among_equal_elements_must_be_consistent(
    referee: Referee, documented: bool, precision: str, tmp_path: Path
) -> None:
    task = tmp_path / "hot.py"
    choice = "x.argmax(-1)" if documented else "x.topk(1)[1].squeeze(-1)"
    task.write_text(HOT.read_text().replace("x.argmax(-1)", choice))
    opened_task = load_task(str(task), device="cpu", precision=precision)
    with Referee(opened_task, fork_server=referee.fork_server) as opened:
        for kind in (Inputs.INTEGER, Inputs.NORMAL):
            expected, (x,) = opened.ask(Weights.OWN, 0, kind, 7)
            first = F.one_hot(x.argmax(-1), x.shape[-1]).float()
            last = F.one_hot(x.shape[-1] - 1 - x.flip(-1).argmax(-1), x.shape[-1]).float()
            every = (x == x.amax(-1, keepdim=True)).float()
            unique = kind is Inputs.NORMAL
            for hot, passes in (
                (first, True),
                (last, unique or not documented),
                (every, unique),
            ):
                found = opened.judged([hot, hot.mean(0)], expected, kind, opened.sensitivity(7))
                assert found.passed is passes
            assert not opened.judged(
                [1 - last, last.mean(0)], expected, kind, opened.sensitivity(7)
            ).passed


def test_failed_perturbed_run_is_clamped_or_counts_as_no_change() -> None:
    x = torch.tensor([0.5, 1.0, 1.0, 1.0, 0.25], dtype=torch.float64)
    generator, moved = torch.Generator().manual_seed(1), torch.full_like(x, 7.0)

    def probabilities(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if bool((tensors[0] > 1).any()):
            raise ValueError("no probability")
        return [tensors[0] * 2]

    def only_these(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        if not torch.equal(tensors[0], x):
            raise RuntimeError("other numbers")
        return [tensors[0] * 2]

    for run, moves in ((probabilities, True), (only_these, False)):
        reference = sensitivity.PerturbedReference(run, [x], {}, generator, lambda r=run: r([x]))
        sensitivity.measure_change(reference, 1e-3, 1e-7, 4, [moved])
        assert bool(moved.all()) == bool(moved.any()) == moves
        assert float(moved.max()) < 1e-2
