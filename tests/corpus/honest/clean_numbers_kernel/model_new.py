"""All three replacements in C++.

task: clean_numbers
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/clean_numbers_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.clean(y, x, self.scale, self.shift, *x.shape)
        return y
