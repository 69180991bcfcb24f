"""The interval is the number of edges that are not larger than the value.

task: edges_lookup
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, 9))
        self.rows = nn.Embedding(10, width)

    def forward(self, x):
        # Written so that NaN, which is larger than all edges, counts them all.
        index = (~(x[..., None] < self.edges)).sum(-1)
        return self.rows.weight[index]
