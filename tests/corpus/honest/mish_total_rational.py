"""Computes mish with one exponential.

task: mish_total
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = x.clamp(max=20).exp()
        n = e * (e + 2)
        return torch.where(x > 20, x, x * n / (n + 2)).mean()
