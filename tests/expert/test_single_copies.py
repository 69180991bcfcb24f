"""Several copies in a row, as where images are divided into patches, are one copy."""

from __future__ import annotations

import pytest
import test_emulated_cuda as emulated  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options
from cuagent.expert.capture.single_copies import with_single_copies
from cuagent.expert.capture.subject import open_subject
from cuagent.expert.graph.lowering import operator_name
from cuagent.task import load_task

TEXT = """
import torch
from torch import nn
import torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)
    def apart(self, x):
        x = x.reshape(2 * 8 * 3, 2, 5, 2).transpose(1, 2)
        return x.reshape(2, 8, 15, 4).transpose(1, 3).reshape(8, 15, 8)
    def together(self, x):
        x = x.contiguous().view(2, 4, 15, 8).transpose(1, 3).reshape(48, 5, 2, 2)
        return x.transpose(1, 2).reshape(2, 8, 6, 10)
    def forward(self, x):
        x = self.first(x)
        {body}
def get_inputs(): return [torch.randn(2, 3, 6, 10)]
def get_init_inputs(): return []
"""
ONCE = {
    "patches and back": (
        "return self.last(self.together(self.linear(self.norm(self.apart(x))) + 1))"
    ),
    "patches that are read twice": "y = self.apart(x); return self.linear(y).tanh() * y + y.exp()",
    "patches in channels last": (
        "x = x.contiguous(memory_format=torch.channels_last); "
        "return self.linear(self.apart(x)).tanh() * 2"
    ),
}
KEPT = {
    "a value in between that is read": (
        "y = x.reshape(48, 2, 5, 2).transpose(1, 2).reshape(2, 8, 15, 4); "
        "return self.linear(y.transpose(1, 3).reshape(8, 15, 8)), y * 2"
    ),
    "one copy": "return self.linear(x.flatten(2).transpose(1, 2).contiguous()).tanh() * 2",
    "factors that do not divide": (
        "y = x.transpose(1, 2).reshape(2, 6, 4, 20).transpose(2, 3).reshape(2, 8, 60); "
        "return y.transpose(1, 2).reshape(2, 3, 160) + 1"
    ),
}


def copies_of(tmp_path, body):
    (tmp_path / "task.py").write_text(TEXT.format(body=body))
    subject = open_subject(load_task(f"{tmp_path / 'task.py'}:Model", device="cpu"))
    before = subject.captured
    after = with_single_copies(before)
    count = [sum(operator_name(n) == "clone" for n in g.nodes) for g in (before, after)]
    return tuple(count)


@pytest.mark.parametrize("name", ONCE)
def test_a_row_of_copies_is_one(tmp_path, name):
    before, after = copies_of(tmp_path, ONCE[name])
    rows = 2 if "back" in name else 1
    assert before - after >= rows


@pytest.mark.parametrize("name", ["a value in between that is read", "one copy"])
def test_other_copies_stay(tmp_path, name):
    before, after = copies_of(tmp_path, KEPT[name])
    assert before == after


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ONCE, *KEPT])
def test_emulated_candidate_agrees_with_reference(tmp_path, monkeypatch, name):
    emulated.check(
        tmp_path, monkeypatch, TEXT.format(body=(ONCE | KEPT)[name]), Options(products=False)
    )
