"""Uses fmax of the C library.

task: larger_there
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/larger_there_fmax.cpp")


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty_like(a)
        kernel.larger(y, a, b, a.numel())
        return y
