"""Searches each row from its end, in C++.

task: last_known
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/last_known_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        value = torch.empty(x.shape[0])
        known = torch.empty(x.shape[0], dtype=torch.long)
        kernel.last(value, known, x, *x.shape)
        return value, known
