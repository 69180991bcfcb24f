"""The examination of a reference by a few calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cuagent.verify.fitness.examine import Findings, examine

TABLE = nn.Embedding(10, 4).eval()


def findings(draw: dict[int, int]) -> Findings:
    """Examine an embedding; `draw` names the recorded sample of each seed, 0 by default."""
    samples = [torch.arange(6), torch.arange(6).flip(0)]

    def forward(tensors: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return [TABLE(tensors[0])]

    return examine(TABLE, forward, lambda seed: [samples[draw.get(seed, 0)].clone()])


def test_equal_choices_of_recorded_integers_are_no_constant_output() -> None:
    """A captured task draws one of at most four recorded calls, so two draws may be equal."""
    found = findings({4: 1})
    assert not found["fixed"]
    assert not found["constant"]


def test_integers_that_never_change_are_fixed() -> None:
    found = findings({})
    assert found["fixed"]
    assert found["constant"]
