"""Scales the whole table first, then looks up rows.

task: lookup
"""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.Embedding(rows, width)
        self.scale = nn.Parameter(torch.rand(rows))

    def forward(self, index):
        return F.embedding(index, self.table.weight * self.scale[:, None])
