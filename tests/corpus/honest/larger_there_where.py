"""Selects with a comparison and a test for NaN.

task: larger_there
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.where(b.isnan() | (a >= b), a, b)
