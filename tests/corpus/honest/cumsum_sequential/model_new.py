"""One running fp32 sum per row in C++.

task: cumsum
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/cumsum_sequential.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.cumsum(y, x, x.shape[0], x.shape[1])
        return y
