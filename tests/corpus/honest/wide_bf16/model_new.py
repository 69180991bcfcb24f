"""Factors in bfloat16, sums in fp32, as tensor cores do.

task: wide
precision: bf16
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/wide_bf16.cpp")


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        linear = self.linear
        y = torch.empty(x.shape[0], linear.out_features)
        kernel.linear(y, x, linear.weight, linear.bias, *x.shape, linear.out_features)
        return y
