"""Written with the absolute difference, in C++.

task: logcosh_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/logcosh_rows_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x, target):
        y = torch.empty(x.shape[0])
        kernel.logcosh(y, x, target, *x.shape)
        return y
