"""A search finds the bag of each index, and its row is added there.

task: bag_offsets
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.EmbeddingBag(rows, width, mode="mean")

    def forward(self, ids, offsets):
        table, bags = self.table.weight, offsets.numel()
        at = torch.arange(ids.numel(), device=ids.device)
        bag = torch.searchsorted(offsets, at, right=True) - 1
        sums = table.new_zeros(bags, table.shape[1]).index_add(0, bag, table[ids])
        members = torch.bincount(bag, minlength=bags).clamp(min=1)
        return sums / members[:, None]
