"""Source texts of a small task for the tests of the agent, and of a right kernel with its
module."""

from __future__ import annotations

SOURCE = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 2 + 1)


def get_inputs():
    return [torch.rand(64, 256)]


def get_init_inputs():
    return []
"""
KERNEL = """\
extern "C" void scale(float* out, const float* in, long n) {
#pragma omp simd
    for (long i = 0; i < n; ++i) {
        float y = in[i] * 2.0f + 1.0f;
        out[i] = y > 0.0f ? y : 0.0f;
    }
}
"""
MODULE = """\
import torch
from cuagent.kernels import load

kernels = load("kernels/scale.cpp")


class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        kernels.scale(out, x, x.numel())
        return out
"""
