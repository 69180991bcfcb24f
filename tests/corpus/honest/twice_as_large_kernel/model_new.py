"""Weights of one quarter and three quarters, in C++.

task: twice_as_large
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/twice_as_large_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x, skip):
        y = torch.empty_like(skip)
        kernel.enlarge(y, x, skip, x.shape[0] * x.shape[1], x.shape[2], x.shape[3])
        return y
