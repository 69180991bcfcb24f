"""Blocks of scores with a running maximum, in C++.

task: pooled_online
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/pooled_online_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, scores, values):
        y = torch.empty(values.shape[0], values.shape[2])
        kernel.pool(y, scores, values, *values.shape)
        return y
