"""Processes rows first and stores their statistics for the sums along columns.

task: layernorm_backward
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/layernorm_backward_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, dy, x):
        rows, width = x.shape
        dx, dw = torch.empty_like(x), torch.empty(width)
        kernel.backward(dx, dw, dy, x, self.weight, torch.empty(2 * rows), rows, width)
        return dx, dw
