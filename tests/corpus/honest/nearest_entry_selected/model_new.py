"""Rounds in C++ by nearbyint and copies the rows.

task: nearest_entry
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/nearest_entry_selected.cpp")


class ModelNew(nn.Module):
    def forward(self, x, table):
        y = torch.empty(x.shape[0], table.shape[1])
        kernel.entries(y, x, table, x.shape[0], table.shape[1])
        return y
