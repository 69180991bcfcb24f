"""Skips elements with zero probability, in C++.

task: kl_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/kl_rows_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, logq, p):
        y = torch.empty(p.shape[0])
        kernel.divergence(y, logq, p, *p.shape)
        return y
