"""Keeps two potentials instead of the matrix, in C++.

task: sinkhorn
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/sinkhorn_potentials.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.balance(y, x, x.shape[0], x.shape[1], 16)
        return y
