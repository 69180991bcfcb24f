"""Rounds to even in the processor's rounding mode, in C++.

task: fake_quant
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/fake_quant_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 0.0625))
        self.register_buffer("zero", torch.zeros(width))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.quantise(y, x, self.scale, self.zero, *x.shape)
        return y
