"""Rotary embeddings of transposed heads: no operator of torch is left, and nothing is copied."""

from __future__ import annotations

import pytest
from agreement import assert_agrees

from cuagent.expert.candidate import Options

pytestmark = pytest.mark.slow

NORM = """
    def norm(self, x, weight):
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)
"""
TEXT = """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(16, dtype=torch.{dtype}))
    {norm}
    def turned(self, x):
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)
    def forward(self, q, k, cos, sin):
        q, k = q.view(2, 9, 4, 16), k.view(2, 9, 2, 16)
        {prepared}
        q, k, cos, sin = q.transpose(1, 2), k.transpose(1, 2), cos[:, None], sin[:, None]
        return q * cos + self.turned(q) * sin, k * cos + self.turned(k) * sin
def get_inputs():
    sizes = (64, 32, 16, 16)
    return [torch.randn(2, 9, n).to(torch.{dtype}) for n in sizes]
def get_init_inputs(): return []
"""
NORMED = "q, k = self.norm(q, self.w), self.norm(k, self.w)"


def text_of(dtype: str, *, normed: bool) -> str:
    norm, prepared = (NORM, NORMED) if normed else ("", "pass")
    return TEXT.format(dtype=dtype, norm=norm.strip("\n").lstrip(), prepared=prepared)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("normed", "kernels"), [(False, 2), (True, 4)])
def test_rotary_embedding_is_one_kernel_for_each_output(make, dtype, normed, kernels):
    made = make(text_of(dtype, normed=normed), "Model", Options(chains=False))
    assert_agrees(made)
    forward = made.candidate.files["model_new.py"].split("class ModelNew")[1]
    assert len(made.candidate.kernels) == kernels
    assert not any(word in forward for word in ("torch.ops", ".contiguous()\n"))


@pytest.mark.gpu
@pytest.mark.parametrize("normed", [False, True])
def test_rotary_embedding_agrees_on_a_gpu(make, normed):
    made = make(text_of("bfloat16", normed=normed), "Model", Options(), "cuda")
    assert_agrees(made, "cuda")
