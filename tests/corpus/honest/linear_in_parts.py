"""The sum over the inner axis in four parts, added in another order.

task: linear
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        parts = zip(x.split(16, dim=1), self.linear.weight.split(16, dim=1), strict=True)
        total = self.linear.bias.expand(x.shape[0], -1).clone()
        for a, b in reversed(list(parts)):
            total += a @ b.t()
        return torch.where(total > 0, total, 0)
