"""Keeps the sum in fp32, in C++.

task: averages_bf16
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/averages_bf16_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        wide = x.float()
        y = torch.empty_like(wide)
        kernel.average(y, wide, *x.shape)
        return y.to(x.dtype)
