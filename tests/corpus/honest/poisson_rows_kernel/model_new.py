"""All terms in one pass, in C++.

task: poisson_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/poisson_rows_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x, target):
        y = torch.empty(x.shape[0])
        kernel.poisson(y, x, target, *x.shape)
        return y
