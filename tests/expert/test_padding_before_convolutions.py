"""Padding with zeros before a convolution is part of the convolution's generated kernel."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.convolutions import qualify
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132, tf32_convolutions=True)
TASK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.{layer}(40, 40, {size}), nn.{layer}(40, 40, 1)
    def forward(self, x):
        return {body}
def get_inputs(): return [torch.randn({shape})]
def get_init_inputs(): return []
"""
CAUSAL = {"layer": "Conv1d", "size": "3, dilation=4", "shape": "2, 40, 90"}
FORMS = {
    "causal": CAUSAL | {"body": "x + torch.tanh(self.a(F.pad(x, (8, 0))))"},
    "both sides and its own padding": CAUSAL
    | {"size": "3, padding=1", "body": "torch.tanh(self.a(F.pad(x, (1, 2))))"},
    "the end of images": {
        "layer": "Conv2d",
        "size": "3, stride=2",
        "shape": "2, 40, 12, 14",
        "body": "torch.tanh(self.a(F.pad(x, (0, 1, 0, 1))))",
    },
}


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Let small convolutions also become generated kernels."""
    monkeypatch.setattr(qualify, "LEAST_OPERATIONS", 0)
    monkeypatch.setattr(qualify, "LEAST_OCCUPIED", 0)


def made(path, **words: str):
    (path / "task.py").write_text(TASK.format(**words))
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    return make_candidate(subject, Options())


@pytest.mark.parametrize("name", FORMS)
def test_padding_is_not_stored(tmp_path, name):
    candidate = made(tmp_path, **FORMS[name])
    assert candidate.launches == 2, "a copy of the input, and the convolution with what follows"


def test_sum_of_a_layer_that_is_padded_is_stored_by_its_kernel(tmp_path):
    """A kernel for the padding would compute the sum again, and keep the layer's result."""
    body = "(lambda y: (y, self.a(F.pad(y, (8, 0)))))(x + self.b(x))"
    candidate = made(tmp_path, **CAUSAL | {"body": body})
    assert candidate.launches == 2


def test_padding_by_another_number_is_stored(tmp_path):
    other = CAUSAL | {"body": "x + torch.tanh(self.a(F.pad(x, (8, 0), value=1.0)))"}
    assert made(tmp_path, **other).launches > 2


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", FORMS)
def test_padded_convolution_agrees_with_fp64_in_the_interpreter(tmp_path, interpreted, name):
    interpreted(made(tmp_path, **FORMS[name]), tf32=True)
