"""Copies skipped samples without computing them, in C++.

task: skip_flags
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/skip_flags_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x, active):
        y = torch.empty_like(x)
        kernel.layer(y, x, self.inner.weight, self.inner.bias, active, *x.shape)
        return y
