"""Sum and count in one pass in C++.

task: masked_mean
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/masked_mean_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x, mask):
        y = torch.empty(x.shape[0], x.shape[2])
        kernel.masked_mean(y, x, mask, *x.shape)
        return y
