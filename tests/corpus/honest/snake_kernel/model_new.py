"""Uses the sine of the C library.

task: snake
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/snake_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.rate = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.snake(y, x, self.rate, *x.shape)
        return y
