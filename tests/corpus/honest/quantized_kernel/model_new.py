"""Two passes over a row: its largest element, then its integers.

task: quantized
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/quantized_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        q, scale = torch.empty(x.shape, dtype=torch.int8), torch.empty(x.shape[0], 1)
        back = torch.empty_like(x)
        kernel.quantize(q, scale, back, x, *x.shape)
        return q, scale, back
