"""Uses the error function of the C library.

task: gelu_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/gelu_rows_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        kernel.gelu_rows(y, x, *x.shape)
        return y
