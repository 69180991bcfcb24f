"""Selects by where.

task: sparse_gate
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(20))

    def forward(self, x):
        return torch.where(x > self.threshold, x, 0.0)
