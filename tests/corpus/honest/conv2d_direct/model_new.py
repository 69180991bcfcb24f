"""Six loops in C++.

task: conv2d
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/conv2d_direct.cpp")


class ModelNew(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, padding=1)

    def forward(self, x):
        y = torch.empty(x.shape[0], self.conv.out_channels, *x.shape[2:])
        kernel.conv(y, x, self.conv.weight, self.conv.bias, *x.shape, y.shape[1])
        return y
