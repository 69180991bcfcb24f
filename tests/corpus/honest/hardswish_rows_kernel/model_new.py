"""Three branches in C++.

task: hardswish_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/hardswish_rows_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        kernel.hardswish(y, x, *x.shape)
        return y
