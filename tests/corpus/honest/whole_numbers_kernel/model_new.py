"""Uses functions of the C library.

task: whole_numbers
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/whole_numbers_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        ys = [torch.empty_like(x) for _ in range(5)]
        kernel.whole(*ys, x, x.numel())
        return tuple(ys)
