"""Computes the transposed product; the second output is a view of the first.

task: turned_pair
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        y = self.linear.weight @ x.transpose(1, 2) + self.linear.bias[:, None]
        return y, y[:, ::2]
