"""Sums of 64 lanes and of the remaining elements, in C++.

task: whole_norm
"""

import torch
from torch import nn

from cuagent.kernels import load

K = load("kernels/whole_norm_lanes.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        K.run(y, x, x.numel())
        return y
