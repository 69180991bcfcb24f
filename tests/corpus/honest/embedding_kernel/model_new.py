"""Gathered and averaged in C++.

task: embedding
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/embedding_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, index):
        y = torch.empty(index.shape[0], self.table.embedding_dim)
        kernel.bags(y, self.table.weight, index, index.shape[0], index.shape[1], y.shape[1])
        return y
