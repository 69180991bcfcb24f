"""Selection of the lower median, twice for a row, in C++.

task: lower_median
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/lower_median_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.deviations(y, x, *x.shape)
        return y
