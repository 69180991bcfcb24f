"""A number that differs from itself counts as missing, in C++.

task: missing_values
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/missing_values_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fill = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        y = torch.empty(x.shape[0], 2 * x.shape[1])
        kernel.fill_in(y, x, self.fill, *x.shape)
        return y
