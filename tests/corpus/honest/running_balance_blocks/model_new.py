"""Sums blocks of 512 and adds the carry of the blocks before, in C++.

task: running_balance
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/running_balance_blocks.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.balance(y, x, *x.shape)
        return y
