"""One pass in C++.

task: batchnorm
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/batchnorm_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = torch.empty_like(x)
        norm = self.norm
        kernel.batchnorm(
            y,
            x,
            norm.running_mean,
            norm.running_var,
            norm.weight,
            norm.bias,
            norm.eps,
            x.shape[0],
            x.shape[1],
            x[0, 0].numel(),
        )
        return y
