"""Halves of a channel shuffle are copied from the concatenated values, not from a copied whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import test_emulated_cuda as emulated  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.task import load_task

TEXT = """
import torch
from torch import nn
class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d({b}, {b}, 1), nn.ReLU(), nn.Conv2d({b}, {b}, 3, padding=1, groups={b}),
            nn.Conv2d({b}, {b}, 1), nn.ReLU(),
        )
    def forward(self, x):
        a, b = x.split([24 - {b}, {b}], 1)
        x = torch.cat([{first}, self.inner(b)], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 3, padding=1)
        self.units = nn.Sequential(Unit(), Unit(), Unit())
        self.last = nn.Conv2d(24, 8, 1)
    def forward(self, x):
        return self.last(self.units(self.stem(x).relu()))
def get_inputs():
    return [torch.randn(2, 3, 6, 10){layout}]
def get_init_inputs():
    return []
"""
LAST = ".contiguous(memory_format=torch.channels_last)"
TASKS = {
    "contiguous": TEXT.format(b=12, first="a", layout=""),
    "channels last": TEXT.format(b=12, first="a", layout=LAST),
    "computed first half": TEXT.format(b=12, first="a.sigmoid() * 2", layout=LAST),
}


def source_of(made):
    assert made is not None
    return made.files["model_new.py"].rpartition("class ModelNew")[2]


@pytest.mark.parametrize("name", TASKS)
def test_torch_copies_no_shuffle(tmp_path, name):
    (tmp_path / "task.py").write_text(TASKS[name])
    subject = open_subject(load_task(f"{tmp_path / 'task.py'}:Model", device="cpu"))
    made = make_candidate(replace(subject, target=Target("cuda")), Options(products=False))
    text = source_of(made)
    # The last shuffle is not split, but read as a whole.
    assert text.count("aten.cat") <= 1
    assert text.count("aten.clone") <= 1


KEPT = {
    "unequal parts": TEXT.format(b=10, first="a", layout=LAST),
    "split between the channels of a pair": TEXT.format(b=11, first="a", layout=LAST),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TASKS, *KEPT])
def test_emulated_candidate_agrees_with_reference(tmp_path, monkeypatch, name):
    emulated.check(tmp_path, monkeypatch, (TASKS | KEPT)[name], Options(products=False))
