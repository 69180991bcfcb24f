"""Rows are selected together, then averaged.

task: embedding
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, index):
        rows = self.table.weight.index_select(0, index.flatten())
        return rows.view(*index.shape, -1).sum(1) / index.shape[1]
