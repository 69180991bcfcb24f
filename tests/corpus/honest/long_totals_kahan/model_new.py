"""A compensated sum in C++.

task: long_totals
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/long_totals_kahan.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        kernel.totals(y, x, *x.shape)
        return y
