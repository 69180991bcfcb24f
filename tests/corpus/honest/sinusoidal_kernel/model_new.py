"""Adds the rows of the table in C++.

task: sinusoidal
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/sinusoidal_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        rate = 10000 ** (-torch.arange(0, width, 2) / width)
        angle = torch.arange(length)[:, None] * rate
        table = torch.cat([angle.sin(), angle.cos()], -1)
        self.register_buffer("table", table, persistent=False)

    def forward(self, x, start):
        y = torch.empty_like(x)
        kernel.add_positions(y, x.contiguous(), self.table, start, *x.shape)
        return y
