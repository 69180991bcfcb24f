"""One row at a time in C++.

task: gaussian_head
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/gaussian_head_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(width))
        self.log_var = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        y = torch.empty(x.shape[0])
        kernel.density(y, x, self.mean, self.log_var, *x.shape)
        return y
