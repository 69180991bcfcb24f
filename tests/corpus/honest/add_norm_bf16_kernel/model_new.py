"""One pass for the sum and two for its norm, in C++.

task: add_norm_bf16
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/add_norm_bf16_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(192, dtype=torch.bfloat16)

    def forward(self, x, residual):
        y, total = torch.empty_like(x), torch.empty_like(x)
        weight, bias = self.norm.weight.float(), self.norm.bias.float()
        kernel.add_norm(y, total, x, residual, weight, bias, x.shape[0], x.shape[1], self.norm.eps)
        return y, total
