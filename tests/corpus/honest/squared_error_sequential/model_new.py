"""One sequential fp32 sum, in C++.

task: squared_error
"""

import torch
from torch import nn

from cuagent.kernels import load

K = load("kernels/squared_error_sequential.cpp")


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty(())
        K.run(y, a.contiguous(), b.contiguous(), a.numel())
        return y
