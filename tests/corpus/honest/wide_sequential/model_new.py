"""A sequential fp32 sum of 16384 terms.

task: wide
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/wide_sequential.cpp")


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        y = torch.empty(x.shape[0], self.linear.out_features)
        kernel.wide(y, x, self.linear.weight, self.linear.bias, x.shape[0], x.shape[1], y.shape[1])
        return y
