"""One pass over a row that rescales its sum whenever the maximum grows, in C++.

task: softmax
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/softmax_online.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.softmax(y, x, x.shape[0], x.shape[1])
        return y
