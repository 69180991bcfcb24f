"""Marks the cells that were hit, in C++.

task: cell_maxima
threads: 4
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/cell_maxima_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, cells):
        super().__init__()
        self.floor = nn.Parameter(torch.zeros(cells))

    def forward(self, values, cells):
        y = self.floor.detach().expand(values.shape[0], -1).contiguous()
        kernel.maxima(y, values, cells, *values.shape, self.floor.numel())
        return y
