"""Assigns the rows to the slots in a copy.

task: slot_write
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, cache, rows, slots):
        y = cache * 2
        y[slots] = rows * 2
        return y
