"""Linear layers behind which features become channels, as pointwise convolutions."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
from agreement import assert_agrees  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.convolutions import linears
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132)
BLOCK = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.Conv2d(96, 96, 7, padding=3, groups=96)
        self.n = nn.LayerNorm(96)
        self.a, self.b = nn.Linear(96, 384), nn.Linear(384, 96)
        self.s = nn.Parameter(torch.full((96,), 0.1))
        self.to(torch.bfloat16)
    def forward(self, x):
        h = self.n(self.d(x).permute(0, 2, 3, 1))
        h = self.s * self.b(F.gelu(self.a(h)))
        return x + h.permute(0, 3, 1, 2)
def get_inputs(): return [torch.randn(32, 96, 56, 56).to(torch.bfloat16)]
def get_init_inputs(): return []
"""
TOKENS = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = nn.Linear(40, 24)
        self.to(torch.{dtype})
    def forward(self, x):
        h = self.b(x)
        return h{moved}.relu() * 2
def get_inputs(): return [torch.randn({shape}).to(torch.{dtype})]
def get_init_inputs(): return []
"""

MIXED = """
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(18, 40, bias={bias}), nn.Linear(40, 18)
        self.to(torch.{dtype})
    def forward(self, x):
        h = F.gelu(self.a((x * 2){there})) * 3
        return x + {back}
def get_inputs(): return [torch.randn({shape}).to(torch.{dtype})]
def get_init_inputs(): return []
"""
TOKEN, PLACE = "3, 18, 50", "2, 18, 5, 9"
MIXERS = {
    "tokens": (".transpose(1, 2)", "self.b(h).transpose(1, 2)", TOKEN),
    "images": (".permute(0, 2, 3, 1)", "self.b(h).permute(0, 3, 1, 2)", PLACE),
}


def made(path, text: str):
    (path / "task.py").write_text(text)
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    return make_candidate(subject, Options())


def test_block_of_convnext_has_only_kernels(tmp_path):
    candidate = made(tmp_path, BLOCK)
    forward = candidate.files["model_new.py"].rpartition("def forward")[2]
    assert len(candidate.kernels) == candidate.launches == 4
    assert "torch.ops" not in forward
    assert "F." not in forward
    assert "permute" not in forward


@pytest.mark.parametrize(
    "moved", [".transpose(0, 2)", ".transpose(1, 2) + h.sum()", "[:, 4:].transpose(1, 2)"]
)
def test_other_readers_keep_the_linear_layer(tmp_path, monkeypatch, moved):
    monkeypatch.setattr(linears, "LEAST_OPERATIONS", 0)
    candidate = made(tmp_path, TOKENS.format(dtype="bfloat16", moved=moved, shape="30, 24, 40"))
    assert candidate is None or "samples" not in candidate.files["model_new.py"]


def test_result_keeps_the_layout_of_the_permutation(tmp_path, monkeypatch):
    monkeypatch.setattr(linears, "LEAST_OPERATIONS", 0)
    text = TOKENS.format(dtype="bfloat16", moved=".transpose(1, 2)", shape="3, 50, 40")
    candidate = made(tmp_path, text)
    assert candidate is None or "samples" not in candidate.files["model_new.py"]


def test_float32_keeps_the_precision_of_products(tmp_path, monkeypatch):
    monkeypatch.setattr(linears, "LEAST_OPERATIONS", 0)
    text = TOKENS.format(dtype="float32", moved=".transpose(1, 2)", shape="3, 50, 40")
    candidate = made(tmp_path, text)
    assert candidate is None or "samples" not in candidate.files["model_new.py"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(
    ("moved", "shape"),
    [(".transpose(1, 2)", "3, 50, 40"), (".permute(0, 3, 1, 2)", "2, 7, 9, 40")],
)
def test_moved_linear_layer_agrees_with_fp64(tmp_path, monkeypatch, interpreted, moved, shape):
    monkeypatch.setattr(linears, "LEAST_OPERATIONS", 0)
    text = TOKENS.format(dtype="float16", moved=f"{moved}.contiguous()", shape=shape)
    candidate = made(tmp_path, text)
    assert "samples" in candidate.files["model_new.py"]
    interpreted(candidate)


@pytest.mark.parametrize("name", MIXERS)
def test_layers_between_two_permutations_are_two_kernels(tmp_path, monkeypatch, name):
    monkeypatch.setattr(linears, "LEAST_OPERATIONS", 0)
    there, back, shape = MIXERS[name]
    text = MIXED.format(bias=True, dtype="bfloat16", there=there, back=back, shape=shape)
    candidate = made(tmp_path, text)
    forward = candidate.files["model_new.py"].rpartition("def forward")[2]
    assert (candidate.launches, len(candidate.kernels)) == (3, 2)
    assert not any(word in forward for word in ("F.", "permute", "transpose(", "movedim"))


@pytest.mark.parametrize(
    "back",
    ["self.b(h).sum() + h[:, :50, :18].transpose(1, 2)", "self.b(h + h.sum(-1, True)).sum()"],
)
def test_other_readers_keep_the_layer_of_permuted_channels(tmp_path, monkeypatch, back):
    monkeypatch.setattr(linears, "LEAST_OPERATIONS", 0)
    text = MIXED.format(
        bias=True, dtype="bfloat16", there=MIXERS["tokens"][0], back=back, shape=TOKEN
    )
    candidate = made(tmp_path, text)
    assert candidate is None or "samples" not in candidate.files["model_new.py"]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", MIXERS)
def test_layers_between_permutations_agree_with_fp64(
    tmp_path, monkeypatch, interpreted, name, bias
):
    monkeypatch.setattr(linears, "LEAST_OPERATIONS", 0)
    there, back, shape = MIXERS[name]
    text = MIXED.format(bias=bias, dtype="float16", there=there, back=back, shape=shape)
    candidate = made(tmp_path, text)
    assert candidate.files["model_new.py"].count(" channels.") == 2
    interpreted(candidate)


@pytest.mark.gpu
def test_cuda_block_agrees_with_reference(make):
    assert_agrees(make(BLOCK, "Model", Options(), "cuda"), "cuda")
