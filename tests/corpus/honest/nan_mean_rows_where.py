"""Missing numbers become zeros and are not counted.

task: nan_mean_rows
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        there = ~x.isnan()
        return torch.where(there, x, 0).sum(-1) / there.sum(-1)
