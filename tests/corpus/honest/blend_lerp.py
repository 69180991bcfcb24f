"""Interpolates by lerp.

task: blend
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.full((16,), -12.0))

    def forward(self, x, y):
        return torch.lerp(x, torch.tanh(y), torch.sigmoid(self.gate))
