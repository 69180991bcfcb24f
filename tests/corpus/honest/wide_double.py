"""Sums in fp64.

task: wide
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        return (x.double() @ self.linear.weight.double().t() + self.linear.bias).float()
