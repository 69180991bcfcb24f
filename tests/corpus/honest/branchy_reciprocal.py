"""x times the reciprocal root, and zero where x is zero.

task: branchy
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.where(x == 0, 0, x * torch.rsqrt(x))
