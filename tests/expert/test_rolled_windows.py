"""Shifted windows: a padded and rolled value is stored once, and not computed for each piece."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import test_emulated_cuda as emulated  # type: ignore[import-not-found]

from cuagent.expert import slow_calls
from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

TEXT = """
import torch
from torch import nn
import torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.first, self.last = nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 16)
    def forward(self, x):
        h = x + self.norm(self.first(x))
        {body}
def get_inputs(): return [torch.randn(2, 6, 7, 16)]
def get_init_inputs(): return []
"""
BODIES = {
    "padded and rolled": (
        "p = F.pad(h, (0, 0, 0, 1, 0, 2)); "
        "return h + self.last(torch.roll(p, (-3, -3), (1, 2)))[:, :6, :7]"
    ),
    "padded, rolled along one dimension": (
        "p = F.pad(h, (0, 0, 0, 1, 0, 2)); return self.last(torch.roll(p, 2, 1)), h"
    ),
    "a choice of expensive values": (
        "p = torch.cat([h.tanh(), h.exp()], 1); return self.last(torch.roll(p, (-3, 2), (1, 2)))"
    ),
    "an elementwise value": "return self.last(torch.roll(F.relu(x), (-3, -3), (1, 2))), h",
}


@pytest.mark.parametrize("name", ["padded and rolled", "a choice of expensive values"])
def test_no_piece_is_stored_on_its_own(tmp_path, monkeypatch, name):
    monkeypatch.setattr(slow_calls, "LEAST_BYTES", 0)
    (tmp_path / "task.py").write_text(TEXT.format(body=BODIES[name]))
    subject = open_subject(load_task(f"{tmp_path / 'task.py'}:Model", device="cpu"))
    made = make_candidate(replace(subject, target=Target("cuda")), Options(products=False))
    assert made is not None
    forward = made.files["model_new.py"].rpartition("def forward")[2].partition("def _prepare")[0]
    stored = re.findall(r"(\w*roll\w*) = torch.empty", forward)
    assert len(stored) == 1, forward


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_emulated_candidate_agrees_with_reference(tmp_path, monkeypatch, name):
    monkeypatch.setattr(slow_calls, "LEAST_BYTES", 0)
    emulated.check(tmp_path, monkeypatch, TEXT.format(body=BODIES[name]), Options(products=False))
