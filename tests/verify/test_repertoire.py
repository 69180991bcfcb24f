"""Which kinds of inputs a task is tried on, and how often."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from cuagent.verify.draws import Way
from cuagent.verify.inputs import Inputs
from cuagent.verify.repertoire import Repertoire, Turns, repertoire
from cuagent.verify.selections import follow


def suited(run: Callable[..., torch.Tensor], *own: torch.Tensor, call_s: float = 0) -> Repertoire:
    """What a reference of one output is tried on."""
    selections = follow(lambda: [run(*own)]).selections
    return repertoire(
        own,
        [None] * len(own),
        selections,
        lambda inputs: [run(*inputs)],
        discrete=False,
        call_s=call_s,
    )


def test_lines_are_those_that_the_reference_chooses_from() -> None:
    x = torch.randn(4, 6, 50)
    for run, way in (
        (lambda x: x.amax(1), Way((4, 6, 50), (1,))),
        (lambda x: x.relu().flatten(1).max(-1).values, Way((4, 300), (1,))),
        (lambda x: x.amax((0, 2)), Way((4, 6, 50), (0, 2))),
        (lambda x: x.norm(p=float("inf"), dim=2), Way((4, 6, 50), (2,))),
        (lambda x: x.amax(1).sum() + x.max(), Way((4, 6, 50), (1,))),
    ):
        found = suited(run, x)
        assert found.ways == ((way,),)
        assert found.turns[Inputs.MOVING] == Turns(max(2, way.turns), way.turns)


def test_a_long_sweep_is_cut_off_where_calls_take_long_and_says_so() -> None:
    x = torch.randn(2, 600)
    assert suited(lambda x: x.amax(1), x, call_s=0.01).turns[Inputs.MOVING] == Turns(4, 300)


def test_what_chooses_nothing_is_tried_twice() -> None:
    found = suited(lambda x: F.linear(x, x), torch.randn(8, 600))
    assert found.turns[Inputs.MOVING].made == 2
    assert Inputs.SORTED not in found.kinds
    assert Inputs.SINGLE not in found.kinds


def test_any_and_all_are_swept_with_the_rest_below_and_above() -> None:
    found = suited(lambda x: (x > 0).any(1).float(), torch.randn(10, 60))
    assert found.turns[Inputs.MOVING].needed == 12
    masked = suited(lambda x, m: (x * m).sum(1), torch.randn(10, 60), torch.ones(10, 60).bool())
    assert masked.turns[Inputs.SINGLE] == Turns(24, 24)  # along either axis
