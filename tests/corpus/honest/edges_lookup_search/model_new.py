"""A binary search for each number, in C++.

task: edges_lookup
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/edges_lookup_search.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, 9))
        self.rows = nn.Embedding(10, width)

    def forward(self, x):
        table = self.rows.weight
        y = torch.empty(*x.shape, table.shape[1])
        kernel.lookup(y, x, self.edges, table, x.numel(), self.edges.numel(), table.shape[1])
        return y
