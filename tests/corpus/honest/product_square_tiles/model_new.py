"""Tiles are copied into buffers, as into shared memory.

task: product_square
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/product_square_tiles.cpp")


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.product(y, x, self.weight, self.bias, x.shape[0])
        return y
