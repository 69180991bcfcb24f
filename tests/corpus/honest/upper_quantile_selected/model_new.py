"""Selects the two neighbours without a sort, in C++.

task: upper_quantile
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/upper_quantile_selected.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        kernel.quantile(y, x, x.shape[0], x.shape[1], 0.85)
        return y
