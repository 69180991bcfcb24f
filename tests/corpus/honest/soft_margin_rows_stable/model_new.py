"""Computes the positive part separately from the logarithm, in C++.

task: soft_margin_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/soft_margin_rows_stable.cpp")


class ModelNew(nn.Module):
    def forward(self, x, label):
        y = torch.empty(x.shape[0])
        kernel.soft_margin(y, x, label, *x.shape)
        return y
