"""One pass over each row, in C++.

task: restarted_sums
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/restarted_sums_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x, start):
        y = torch.empty_like(x)
        kernel.sums(y, x, start, *x.shape)
        return y
