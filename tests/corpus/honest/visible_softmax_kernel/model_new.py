"""One row at a time, in C++.

task: visible_softmax
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/visible_softmax_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x, mask):
        y = torch.empty_like(x)
        kernel.softmax(y, x, mask, *x.shape)
        return y
