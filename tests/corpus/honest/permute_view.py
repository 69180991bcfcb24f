"""Scales first and returns a view of the result with exchanged axes.

task: permute
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return (x / 2).transpose(1, 2)
