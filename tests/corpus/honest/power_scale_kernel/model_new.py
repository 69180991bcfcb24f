"""Rounds to even by adding and subtracting a large number, in C++.

task: power_scale
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/power_scale_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x, exponent):
        y = torch.empty_like(x)
        kernel.grid(y, x, exponent, *x.shape)
        return y
