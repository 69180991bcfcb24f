"""OpenMP reduces the sums of all threads; the second pass is centred.

task: column_moments
threads: 4
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/column_moments_reduced.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        mean, var = torch.empty(x.shape[1]), torch.empty(x.shape[1])
        kernel.moments(mean, var, x, *x.shape)
        return mean, var
