"""Uses the logarithm up to a threshold of 20, like the library, in C++.

task: softplus_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/softplus_rows_threshold.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        kernel.softplus_rows(y, x, *x.shape)
        return y
