"""All steps of one row at a time, in C++.

task: fixed_point
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/fixed_point_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)

    def forward(self, x):
        z = torch.empty_like(x)
        kernel.settle(z, x, self.mix.weight, self.mix.bias, x.shape[0], x.shape[1], 24)
        return z
