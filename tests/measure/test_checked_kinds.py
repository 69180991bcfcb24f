"""Timed outputs are judged only on kinds of inputs on which a right kernel passes with the weights
of the timing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuagent.measure.timing.repeats import checked_kinds
from cuagent.task import load_task
from cuagent.verify import Referee
from cuagent.verify.inputs.kinds import Inputs
from cuagent.worker import ForkServer

NORM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.EmbeddingBag(100, 32, mode="mean"), nn.LayerNorm(16)

    def forward(self, x, y):
        return self.norm(self.table(x).index_select(-1, y))

def get_init_inputs():
    return []

def get_inputs():
    return [torch.randint(100, (64, 8)), torch.randint(32, (16,))]
"""
ULP = 1 + 2**-23


def test_own_inputs_are_judged_and_exact_ones_are_not() -> None:
    kinds = checked_kinds((Inputs.OWN, Inputs.INTEGER, Inputs.ALIKE, Inputs.EXTREMES))
    assert kinds == [Inputs.OWN, Inputs.EXTREMES]


@pytest.mark.slow
def test_roundoff_of_a_mean_passes_on_all_kinds(tmp_path: Path, fork_server: ForkServer) -> None:
    """On equal indices the norm is exactly zero, and one rounded mean is 4e-5 away from it."""
    path = tmp_path / "task.py"
    path.write_text(NORM)
    with Referee(load_task(path, device="cpu"), fork_server=fork_server) as referee:
        assert Inputs.ALIKE in referee.facts.kinds
        referee.processes.load_timed_weights()
        (table,) = (t for t in referee.processes._timed_weights.tensors() if t.dim() == 2)
        batch = referee.batches.create(1)
        for kind in (*checked_kinds(referee.facts.kinds), Inputs.ALIKE):
            referee.batches.refill(batch, [0], kind)
            bags, columns = batch.inputs.tensors(0)
            rows = table[bags].mean(1)[:, columns]
            mean, variance = rows.mean(1, True) * ULP, rows.var(1, correction=0, keepdim=True)
            given = (rows - mean) * (variance + 1e-5).rsqrt()
            result = referee.batches.check(batch, 0, [given], kind)
            assert result.passed is (kind is not Inputs.ALIKE), (kind, result)
        referee.batches.discard(batch)
