"""Attentions of images read queries, keys and values from one product, and write channels."""

from __future__ import annotations

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
        self.q, self.o = nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)
    def forward(self, x):
        q, k, v = self.q(x).view(2, 2, 24, -1).chunk(3, 2)
        q, k, v = (t.transpose(-1, -2).contiguous() for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.o(y.transpose(-1, -2).reshape(2, -1, 6, 10)).sigmoid() * {factor}
def get_inputs(): return [torch.randn(2, 16, 6, 10){layout}]
def get_init_inputs(): return []
"""
LAYOUTS = {"channels first": "", "channels last": ".to(memory_format=torch.channels_last)"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_in_channels_last_layout_needs_no_copy(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(cuda_staged, "L1_BYTES", 0)
    (tmp_path / "task.py").write_text(TEXT.format(factor="x", layout=LAYOUTS[layout]))
    subject = open_subject(load_task(f"{tmp_path / 'task.py'}:Model", device="cpu"))
    made = make_candidate(replace(subject, target=Target("cuda")), Options(products=False))
    assert made is not None
    text = made.files["model_new.py"].rpartition("def forward")[2]
    assert ".transpose(1, 2).contiguous()" in text
    assert ("clone" in text) is (layout == "channels first"), text


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_emulated_candidate_agrees_with_reference(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(cuda_staged, "L1_BYTES", 0)
    text = TEXT.format(factor="x", layout=LAYOUTS[layout])
    emulated.check(tmp_path, monkeypatch, text, Options(products=False))
