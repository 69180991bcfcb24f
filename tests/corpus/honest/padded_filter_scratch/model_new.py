"""Copies each line into a padded scratch buffer, in C++.

task: padded_filter
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/padded_filter_scratch.cpp")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(7))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.filtered(y, x, self.taps, *x.shape)
        return y
