"""Looks up the bias while it reads a row, in C++.

task: relative_bias
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/relative_bias_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, heads, length):
        super().__init__()
        self.table = nn.Embedding(2 * length - 1, heads)
        places = torch.arange(length)
        self.register_buffer("index", places - places[:, None] + length - 1)

    def forward(self, scores):
        y = torch.empty_like(scores)
        samples, heads, length, _ = scores.shape
        kernel.biased(y, scores, self.table.weight, self.index, samples, heads, length)
        return y
