"""Norm and scale in one loop over rows, in C++.

task: bounded_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/bounded_rows_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.limit = nn.Parameter(torch.tensor(8.0))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.bound(y, x, self.limit.reshape(1), x.shape[0], x.shape[1])
        return y
