"""The filter reads reflected places, in C++.

task: reflected_filter
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/reflected_filter_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, taps):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(taps) / taps)

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.filter(y, x, self.taps, *x.shape, self.taps.numel())
        return y
