"""Pointwise convolutions of one input are one convolution in networks in channels-last layout."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.convolutions import library, stacked
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132, tf32_convolutions=True)
TASK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = ({branches})
        self.d, self.e = nn.Conv2d(12, 8, 3, padding=1), nn.Conv2d(4, 20, 5, padding=2)
        for p in self.parameters():
            p.data += 0.1 * torch.randn(p.shape)
    def forward(self, x):
        a, b, c = self.a(x), self.b(x), self.c(x)
        return {end}
def get_inputs(): return [torch.randn(2, 10, 9, 11)]
def get_init_inputs(): return []
"""
BRANCHES = "nn.Conv2d(10, 16, 1), nn.Conv2d(10, 12, 1), nn.Conv2d(10, 4, 1)"
JOINED = "torch.cat([a, self.d(b), self.e(c)], 1).mean((2, 3))"
APART = "(F.relu(a), F.relu(self.d(F.gelu(b))), F.relu(self.e(c)))"


def made(path, end: str = JOINED, branches: str = BRANCHES, target=HOPPER, **options):
    (path / "task.py").write_text(TASK.format(end=end, branches=branches))
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=target)
    return make_candidate(subject, Options(**options))


def count(candidate) -> int:
    text = str(candidate.files["model_new.py"])
    assert text.count(".contiguous(memory_format=torch.channels_last)") == text.count("conv2d(")
    return text.count("F.conv2d(")


@pytest.mark.parametrize("end", [JOINED, APART])
def test_branches_begin_with_one_convolution(tmp_path, end):
    assert count(made(tmp_path, end)) == 3


@pytest.mark.parametrize(
    ("branches", "convolutions"),
    [
        (BRANCHES.replace("12, 1)", "12, 3, padding=1)"), 4),
        (BRANCHES.replace("12, 1)", "12, 1, bias=False)"), 4),
        (BRANCHES.replace(", 1)", ", 1, padding=1)").replace("4, 1,", "4, 2,"), 5),
    ],
)
def test_other_branches_keep_their_convolutions(tmp_path, branches, convolutions):
    assert count(made(tmp_path, APART, branches)) == convolutions


def test_transposed_convolutions_are_not_merged(tmp_path, monkeypatch):
    monkeypatch.setattr(library, "NETWORK", 3)
    branches = BRANCHES.replace("nn.Conv2d", "nn.ConvTranspose2d", 2)
    text = str(made(tmp_path, APART, branches).files["model_new.py"])
    assert text.count("F.conv_transpose2d(") == 2
    assert text.count(".contiguous(memory_format=torch.channels_last)") == text.count(" = F.conv")
    assert "_stacked" not in text


def test_many_places_and_other_layouts_keep_their_convolutions(tmp_path, monkeypatch):
    assert "_stacked" not in made(tmp_path, convolutions="library").files["model_new.py"]
    monkeypatch.setattr(stacked, "MOST_PLACES", 100)
    assert "_stacked" not in made(tmp_path).files["model_new.py"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("end", [JOINED, APART])
def test_stacked_convolutions_agree_with_fp64(tmp_path, interpreted, end):
    candidate = made(tmp_path, end)
    assert count(candidate) == 3
    interpreted(candidate)
