"""Partial sums of ranges of rows, in memory from malloc that is cleared first.

task: column_moments
threads: 4
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/column_moments_partial.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        mean, var = torch.empty(x.shape[1]), torch.empty(x.shape[1])
        kernel.moments(mean, var, x, *x.shape)
        return mean, var
