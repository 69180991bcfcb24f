"""Sum and count in one pass, in C++.

task: nan_mean_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/nan_mean_rows_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        kernel.nan_mean(y, x, *x.shape)
        return y
