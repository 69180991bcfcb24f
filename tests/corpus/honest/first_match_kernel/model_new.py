"""Compares row by row, in C++.

task: first_match
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/first_match_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, queries, table):
        y = torch.empty(queries.shape[0], dtype=torch.long)
        kernel.match(y, queries, table, queries.shape[0], *table.shape)
        return y
