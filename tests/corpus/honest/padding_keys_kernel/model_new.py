"""Scores, softmax and mean of one sample at a time, in C++.

task: padding_keys
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/padding_keys_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, x, keep):
        y = torch.empty(x.shape[0], x.shape[2])
        kernel.pool(y, x, self.score.weight, keep, *x.shape)
        return y
