"""Two passes over each row in float64, in C++.

task: double_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/double_rows_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.rows(y, x, *x.shape)
        return y
