"""Rows are selected by index_select.

task: few_rows
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(999, 8))

    def forward(self, index, x):
        return torch.index_select(self.table, 0, index) * x
