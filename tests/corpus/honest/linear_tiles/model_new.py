"""Tiles of 8x8 with partial tiles at the edges, sums in blocks of 16, in C++.

task: linear
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/linear_tiles.cpp")


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        y = torch.empty(x.shape[0], self.linear.out_features)
        kernel.linear_tiles(
            y, x, self.linear.weight, self.linear.bias, x.shape[0], x.shape[1], y.shape[1]
        )
        return y
