"""Rows in half precision that a thread keeps as pairs of elements between passes (GPU)."""

from __future__ import annotations

import re

import pytest
import test_emulated_cuda as emulated_cuda  # type: ignore[import-not-found]
import torch
from agreement import assert_agrees  # type: ignore[import-not-found]
from emulation import emulated  # type: ignore[import-not-found]
from importing import imported  # type: ignore[import-not-found]
from shares import slow_except

from cuagent import kernels
from cuagent.expert.candidate import Options
from cuagent.expert.capture.subject import Target

HOPPER = Target("cuda", (9, 0), 132)
TASK = """
import torch
import torch.nn.functional as F
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn({columns}))
        self.to(torch.{dtype})
    def forward(self, x, y, z):
        {body}
def get_inputs():
    x, y, z = torch.randn(3, 7, {columns}).unbind()
    return [x.to(torch.{dtype}), y.to(torch.{dtype}), z]
def get_init_inputs(): return []
"""
NORM = "h = x + y * self.weight; return F.layer_norm(h, h.shape[1:], self.weight, self.weight), h"
CASES = {
    "residual and norm": (NORM, 1024, "bfloat16"),
    "norm of a part of the last vectors": (NORM, 2056, "float16"),
    "norm of a block": ("return F.layer_norm(x, x.shape[1:], self.weight)", 4096, "bfloat16"),
    "vectors of four": ("return F.layer_norm(x, x.shape[1:])", 132, "float16"),
    "softmax": ("return torch.softmax(x * 2 + y, -1)", 512, "bfloat16"),
    "two dtypes": ("return (x + z) / (x * z).sum(-1, keepdim=True)", 1024, "bfloat16"),
}


def text_of(name: str) -> str:
    body, columns, dtype = CASES[name]
    return TASK.format(body=body, columns=columns, dtype=dtype)


def source_of(candidate) -> str:
    (text,) = (t for f, t in candidate.files.items() if f.endswith(".cu"))
    return text


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_emulated_rows_agree_with_reference(tmp_path, monkeypatch, name):
    candidate = emulated_cuda.check(tmp_path, monkeypatch, text_of(name), Options(), HOPPER)
    assert "unpack<" in source_of(candidate)


@pytest.mark.slow
def test_emulated_rows_keep_nan_and_infinities(tmp_path, monkeypatch):
    text = text_of("softmax")
    emulated_cuda.check(tmp_path, monkeypatch, text, Options(), HOPPER)
    monkeypatch.setattr(kernels, "load", emulated)
    x, y, z = imported(tmp_path / "task.py").get_inputs()
    x[0, 9], x[1, 511], x[2, 0], x[3, :] = torch.nan, torch.inf, -torch.inf, 3e38
    with torch.no_grad():
        got = imported(tmp_path / "model_new.py").ModelNew().eval()(x, y, z)
    expected = torch.softmax(x.float() * 2 + y.float(), -1).bfloat16()
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize(
    "name", slow_except(CASES, "residual and norm", "vectors of four", "softmax")
)
def test_inputs_that_several_passes_read_are_loaded_once(generate, name):
    text = source_of(generate(text_of(name), HOPPER))
    body = text.split('extern "C"')[0]
    for tensor in "xyz":
        loads = re.findall(rf"load_vector\((?:reinterpret_cast<[^(]*)?\(?{tensor} \+", body)
        assert len(loads) <= 1, tensor


def test_large_blocks_keep_no_pairs(generate):
    """A thread of 1024 has few registers."""
    body = CASES["softmax"][0]
    text = TASK.format(body=body, columns=32768, dtype="bfloat16")
    assert "unpack<" not in source_of(generate(text, Target("cuda", (8, 0), 108)))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_rows_agree_with_reference_on_cuda(make, name):
    assert_agrees(make(text_of(name), "Model", device="cuda"), "cuda")
