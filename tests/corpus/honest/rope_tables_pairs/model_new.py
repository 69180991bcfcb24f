"""Rotates each pair of channels in place, in C++.

task: rope_tables
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/rope_tables_pairs.cpp")


class ModelNew(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        rate = 10000 ** (-torch.arange(0, width, 2) / width)
        angle = torch.arange(length)[:, None] * rate
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, x, positions):
        y = torch.empty_like(x)
        heads = x.shape[0] * x.shape[1]
        kernel.turn(y, x, positions, self.cos, self.sin, heads, *x.shape[2:])
        return y
