"""Welford's running mean and variance in C++.

task: layernorm
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/layernorm_welford.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.layernorm(
            y, x, self.norm.weight, self.norm.bias, self.norm.eps, x.shape[0], x.shape[1]
        )
        return y
