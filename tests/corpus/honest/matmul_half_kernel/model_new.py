"""Half-precision inputs, fp32 sums in C++.

task: matmul_half
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/matmul_half_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty(a.shape[0], b.shape[1], dtype=torch.half)
        kernel.product(y, a, b, a.shape[0], a.shape[1], b.shape[1])
        return y
