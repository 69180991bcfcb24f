"""A transpose in tiles of four, in C++.

task: permute
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/permute_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], x.shape[2], x.shape[1])
        kernel.transpose(y, x, *x.shape)
        return y
