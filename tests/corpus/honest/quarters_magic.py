"""Rounds by adding and subtracting 3 * 2^22.

task: quarters
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        big = 12582912.0
        y = x * 4
        return torch.where(y.abs() < 4194304.0, (y + big) - big, y.round()) * 0.25
