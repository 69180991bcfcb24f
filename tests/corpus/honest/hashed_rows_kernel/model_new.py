"""Hash and copy in one pass, in C++.

task: hashed_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/hashed_rows_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rows = nn.Embedding(61, width)

    def forward(self, ids):
        table = self.rows.weight
        y = torch.empty(*ids.shape, table.shape[1])
        kernel.hashed(y, ids, table, ids.numel(), *table.shape)
        return y
