"""Shifts each sign into its byte, in C++.

task: packed_flags
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/packed_flags_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0], (x.shape[1] + 7) // 8, dtype=torch.uint8)
        kernel.pack(y, x, *x.shape)
        return y
