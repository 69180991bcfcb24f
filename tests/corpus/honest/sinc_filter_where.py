"""Replaces a zero argument before dividing.

task: sinc_filter
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rate = nn.Parameter(torch.ones(width))

    def forward(self, x):
        angle = torch.pi * (x * self.rate)
        is_zero = angle == 0
        safe = torch.where(is_zero, torch.ones_like(angle), angle)
        return torch.where(is_zero, torch.ones_like(angle), safe.sin() / safe)
