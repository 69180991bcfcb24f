"""Caches the transposed weight, and updates it if the parameter has changed.

task: linear
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)
        self.packed, self.version = None, None

    def forward(self, x):
        weight = self.linear.weight
        if self.version != weight._version:
            self.packed, self.version = weight.t().contiguous(), weight._version
        return torch.relu_((x @ self.packed).add_(self.linear.bias))
