"""Logarithms of the gamma function in double precision, in C++.

task: beta_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/beta_rows_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, a, b, x):
        y = torch.empty(x.shape[0])
        kernel.beta(y, a, b, x, x.shape[0], x.shape[1])
        return y
