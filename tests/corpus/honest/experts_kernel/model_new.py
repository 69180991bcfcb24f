"""Selects the first of equal shares, in C++.

task: experts
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/experts_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(24, 8, bias=False)

    def forward(self, x):
        loss, taken = torch.empty(()), torch.empty(8, dtype=torch.int64)
        kernel.experts(loss, taken, x, self.router.weight, x.shape[0], x.shape[1])
        return loss, taken
