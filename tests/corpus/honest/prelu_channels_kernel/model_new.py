"""One plane at a time in C++.

task: prelu_channels
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/prelu_channels_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.act = nn.PReLU(channels)

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.prelu(y, x, self.act.weight, x.shape[0], x.shape[1], x.shape[2] * x.shape[3])
        return y
