"""Product, activation and sum in one pass, in C++.

task: rezero
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/rezero_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.alpha = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.block(y, x, self.inner.weight, self.inner.bias, self.alpha, *x.shape)
        return y
