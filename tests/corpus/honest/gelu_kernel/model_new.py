"""erfc of the negated argument in C++, which keeps small results exact.

task: gelu
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/gelu_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.gelu(y, x, x.numel())
        return y
