"""Kernels store values in the order that the library's calls need, which would else copy them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import test_emulated_cuda as emulated  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.streaming import cuda_staged
from cuagent.task import load_task

TEXT = """
import torch
from torch import nn
import torch.nn.functional as F
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.d = nn.Conv2d(24, 16, 2, 2)
        self.n, self.l, self.g = nn.LayerNorm(24), nn.Linear(24, 24), nn.GroupNorm(4, 24)
    def last(self, x):
        return x.permute(0, 2, 3, 1)
    def first(self, x):
        return x.permute(0, 3, 1, 2)
    def forward(self, x):
        h = self.c(x)
        {body}
def get_inputs(): return [torch.randn(2, 24, 6, 10)]
def get_init_inputs(): return []
"""
BODIES = {
    "norm before a linear layer": "return self.first(self.l(self.n(self.last(h)))) * 2 + x",
    "activation before a linear layer": "return self.first(self.l(self.last(h * x).sigmoid()))",
    "norm before a convolution": "return self.d(self.first(self.n(self.last(h * x))))",
    "one value in two orders": (
        "h = h * x + 1; return self.first(self.l(self.n(self.last(h)))).sigmoid() * h, self.d(h)"
    ),
}
READERS = re.compile(r"F\.(?:linear|conv2d)\((.*?), (?:self|\w+_weight)")


@pytest.mark.parametrize("name", BODIES)
def test_values_are_stored_in_the_order_of_their_readers(tmp_path, monkeypatch, name):
    monkeypatch.setattr(cuda_staged, "L1_BYTES", 0)
    (tmp_path / "task.py").write_text(TEXT.format(body=BODIES[name]))
    subject = open_subject(load_task(f"{tmp_path / 'task.py'}:Model", device="cpu"))
    made = make_candidate(replace(subject, target=Target("cuda")), Options(products=False))
    assert made is not None
    text = made.files["model_new.py"].rpartition("def forward")[2]
    found = READERS.findall(text)
    assert found
    assert not any(".permute" in argument for argument in found), text
    # cuDNN would copy a weight in another layout in each call.
    assert ("_channels_last_weight" in text) == (name == "norm before a convolution")


@pytest.mark.slow
@pytest.mark.parametrize("name", BODIES)
def test_emulated_candidate_agrees_with_reference(tmp_path, monkeypatch, name):
    monkeypatch.setattr(cuda_staged, "L1_BYTES", 0)
    text = TEXT.format(body=BODIES[name])
    emulated.check(tmp_path, monkeypatch, text, Options(products=False))


KEPT = {
    "norm of groups": (
        "return self.d(F.relu(self.g(h.contiguous(memory_format=torch.channels_last))))"
    ),
    "softmax over places": (
        "h = torch.softmax((h * x).flatten(2), -1).view(h.shape);"
        " return self.first(self.l(self.last(h)))"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_rows_over_places_stay_in_their_order(tmp_path, monkeypatch, name):
    monkeypatch.setattr(cuda_staged, "L1_BYTES", 0)
    text = TEXT.format(body=KEPT[name])
    made = emulated.check(tmp_path, monkeypatch, text, Options(products=False))
    assert len(made.kernels) == 2, made.notes
