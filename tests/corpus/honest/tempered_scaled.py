"""Multiplies by the inverse temperature.

task: tempered
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x):
        factor = 1 / self.temperature.abs().clamp(min=0.05)
        return torch.softmax(x * factor, -1)
