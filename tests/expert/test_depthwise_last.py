"""Depthwise convolutions of values in channels-last layout have a CUDA kernel for that layout."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from emulation import cuda_text  # type: ignore[import-not-found]
from test_emulated_cuda import check  # type: ignore[import-not-found]

from cuagent.expert.candidate import Options, make_candidate
from cuagent.expert.capture.subject import Target, open_subject
from cuagent.expert.depthwise import cuda_last
from cuagent.task import load_task

HOPPER = Target("cuda", (9, 0), 132, False, True)
LAYERS = {
    "wide window": ("nn.Conv2d(24, 24, 7, padding=3, groups=24)", "2, 14, 9, 24", "self.c(h)"),
    "four channels": (
        "nn.Conv2d(40, 40, 3, padding=1, groups=40, bias=False)",
        "2, 6, 7, 40",
        "F.silu(self.c(h)) + h",
    ),
    "strided": ("nn.Conv2d(12, 12, 5, 2, 2, groups=12)", "2, 11, 13, 12", "self.c(h) * 2"),
    "dilated": (
        "nn.Conv2d(6, 6, (3, 5), 1, (2, 4), dilation=(3, 2), groups=6)",
        "2, 11, 12, 6",
        "self.c(h)",
    ),
    "odd number of channels": ("nn.Conv2d(5, 5, 3, groups=5)", "2, 9, 8, 5", "self.c(h)"),
    "operation before": ("nn.Conv2d(8, 8, 3, padding=1, groups=8)", "2, 9, 8, 8", "self.c(h + 1)"),
    "stride larger than the window": (
        "nn.Conv2d(8, 8, (1, 2), 3, groups=8)",
        "2, 10, 11, 8",
        "self.c(h)",
    ),
    "broadcast operands": (
        "nn.Conv2d(8, 8, 3, padding=1, groups=8)",
        "2, 9, 8, 8",
        "self.c(h) * self.s + h.mean((2, 3), keepdim=True)",
    ),
}


def text_of(name: str, dtype: str = "float32") -> str:
    layer, shape, forward = LAYERS[name]
    return f"""
import torch
import torch.nn.functional as F
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = {layer}
        self.s = nn.Parameter(torch.randn(self.c.weight.shape[0], 1, 1))
        self.to(torch.{dtype})
    def forward(self, x):
        h = x.permute(0, 3, 1, 2)
        return torch.softmax(({forward}).permute(0, 2, 3, 1), -1)
def get_inputs(): return [torch.randn({shape}, dtype=torch.{dtype})]
def get_init_inputs(): return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("trace", ["as returned", "contiguous"])
@pytest.mark.parametrize("name", LAYERS)
def test_emulated_kernel_agrees_with_reference(tmp_path, monkeypatch, name, trace):
    if trace == "contiguous":
        trace_contiguous(monkeypatch)
    monkeypatch.setattr(cuda_last, "LEAST_THREADS", 0)
    candidate = check(tmp_path, monkeypatch, text_of(name), Options())
    assert "LANES" in cuda_text(candidate)
    assert "permute(F" not in candidate.files["model_new.py"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [Options(), Options(threads=64, vector=False)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_emulated_single_rows(tmp_path, monkeypatch, dtype, options):
    candidate = check(tmp_path, monkeypatch, text_of("four channels", dtype), options)
    vector = 4 if options.vector else 1
    assert f"VECTOR = {vector}, ROWS = 1" in cuda_text(candidate)


def test_other_layouts_have_the_kernel_for_planes(tmp_path):
    text = text_of("wide window").replace("h = x.permute(0, 3, 1, 2)", "h = x")
    text = text.replace("2, 14, 9, 24", "2, 24, 14, 9")
    candidate = made(tmp_path, text)
    assert "LANES" not in cuda_text(candidate)
    assert "thread_sums" in cuda_text(candidate)


STAGE = """
import torch
import torch.nn.functional as F
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.d = nn.Conv2d(64, 64, 7, padding=3, groups=64)
        self.n = nn.LayerNorm(64)
        self.a, self.b = nn.Linear(64, 256), nn.Linear(256, 64)
        self.s = nn.Parameter(torch.full((64,), 0.1))
    def forward(self, x):
        h = self.n(self.d(x).permute(0, 2, 3, 1))
        h = self.b(F.gelu(self.a(h))).permute(0, 3, 1, 2) * self.s.reshape(1, -1, 1, 1)
        return h + x
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.c = nn.LayerNorm(32), nn.Conv2d(32, 64, 2, 2)
        self.blocks = nn.Sequential(Block(), Block())
        self.to(torch.bfloat16)
    def forward(self, x):
        x = self.n(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.blocks(self.c(x))RESULT
def get_inputs(): return [torch.randn(32, 32, 56, 56).to(torch.bfloat16)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize("result", ["", ".mean((2, 3))"])
@pytest.mark.parametrize("trace", ["as returned", "contiguous"])
def test_blocks_of_convnext_have_one_layout(tmp_path, monkeypatch, trace, result):
    if trace == "contiguous":
        trace_contiguous(monkeypatch)
    candidate = made(tmp_path, STAGE.replace("RESULT", result))
    module = candidate.files["model_new.py"]
    forward = module[module.rindex("def forward") :].partition("def _prepare")[0]
    assert forward.count("permute(") == (result == "")
    assert ".contiguous(memory_format=torch.channels_last)" in forward
    assert "torch.ops.aten.add" not in forward
    assert candidate.launches == 2 + 2 * 4 + (result != "")


def trace_contiguous(monkeypatch) -> None:
    """Trace convolutions as on a GPU, where their results are contiguous."""
    name = "_conv_determine_backend_memory_format"
    monkeypatch.setattr(torch._C, name, lambda *_: torch.contiguous_format)


def made(path, text: str):
    (path / "task.py").write_text(text)
    subject = replace(open_subject(load_task(f"{path / 'task.py'}:Model")), target=HOPPER)
    return make_candidate(subject, Options())


@pytest.mark.slow
@pytest.mark.parametrize("result", ["", ".mean((2, 3))"])
@pytest.mark.parametrize("trace", ["as returned", "contiguous"])
def test_emulated_blocks_of_convnext_agree(tmp_path, monkeypatch, trace, result):
    if trace == "contiguous":
        trace_contiguous(monkeypatch)
    text = STAGE.replace("RESULT", result).replace("32, 32, 56, 56", "2, 32, 12, 16")
    text = text.replace("bfloat16", "float32")
    candidate = check(tmp_path, monkeypatch, text, Options())
    assert "LANES = 32" in cuda_text(candidate)
