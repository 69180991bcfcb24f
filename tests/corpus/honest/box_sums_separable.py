"""Sums rows, then columns.

task: box_sums
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        rows = torch.sum(x.unfold(-1, 9, 1), -1)
        return rows.unfold(-2, 9, 1).sum(-1) / 81
