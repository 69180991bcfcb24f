"""Streaming with a running maximum, in C++.

task: logsumexp
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/logsumexp_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        kernel.logsumexp(y, x, x.shape[0], x.shape[1])
        return y
