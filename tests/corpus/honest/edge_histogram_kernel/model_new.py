"""Searches the interval of each number, in C++.

task: edge_histogram
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/edge_histogram_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("edges", torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]))

    def forward(self, x):
        counts = torch.empty(x.shape[0], self.edges.numel() - 1, dtype=torch.long)
        kernel.count(counts, x, self.edges, *x.shape, self.edges.numel() - 1)
        return counts
