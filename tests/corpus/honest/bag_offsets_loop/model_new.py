"""One thread sums the rows of a bag, in C++.

task: bag_offsets
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/bag_offsets_loop.cpp")


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, mode="mean")

    def forward(self, ids, offsets):
        table = self.table.weight
        y = torch.empty(offsets.numel(), table.shape[1])
        kernel.bags(y, table, ids, offsets, ids.numel(), offsets.numel(), table.shape[1])
        return y
