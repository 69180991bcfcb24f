"""Copies each row as often as its count says, in C++.

task: run_lengths
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/run_lengths_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def forward(self, rows, counts):
        y = torch.zeros(self.length, rows.shape[1])
        kernel.spread(y, rows, counts, *rows.shape, self.length)
        return y
