"""Clips windows at the edges instead of padding.

task: max_pool
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/max_pool_windows.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        rows, columns = (-(-(size - 1) // 2) + 1 for size in x.shape[2:])
        y = torch.empty(*x.shape[:2], rows, columns)
        kernel.pool(y, x, x.shape[0] * x.shape[1], *x.shape[2:], rows, columns)
        return y
