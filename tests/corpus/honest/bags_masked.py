"""Rows are looked up, multiplied by zero for padding, summed, and divided by the count.

task: bags
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(30, 16, mode="mean", padding_idx=3)

    def forward(self, bags):
        counts = (bags != 3).to(self.table.weight.dtype)
        total = (self.table.weight[bags] * counts[..., None]).sum(1)
        return total / counts.sum(1, keepdim=True).clamp(min=1)
