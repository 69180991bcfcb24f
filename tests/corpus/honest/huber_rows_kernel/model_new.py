"""Both branches in C++.

task: huber_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/huber_rows_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, delta):
        super().__init__()
        self.delta = delta

    def forward(self, x, target):
        y = torch.empty(x.shape[0])
        kernel.huber(y, x, target, self.delta, *x.shape)
        return y
