"""One comparison for each element, in C++.

task: dead_zone
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/dead_zone_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.theta = nn.Parameter(torch.full((width,), 0.125))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.dead_zone(y, x, self.theta, *x.shape)
        return y
