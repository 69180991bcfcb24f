"""One thread per channel of a sample, in C++.

task: moving_average
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/moving_average_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(1, 4, channels))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.average(y, x, torch.sigmoid(self.rate), *x.shape)
        return y
