"""Padding is multiplied by zero and not counted.

task: padded_bags
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.bag = nn.EmbeddingBag(n, d, mode="mean", padding_idx=1)
        self.pos = nn.Embedding(64, d)

    def forward(self, ids):
        keep = (ids != 1).float()[..., None]
        e = self.bag.weight[ids] * keep
        return e.sum(1) / keep.sum(1).clamp(min=1) + self.pos.weight[ids & 63].sum(1)
