"""Scales the results instead of the weights.

task: unit_weights
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.v = nn.Parameter(torch.randn(width, width))
        self.g = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        scale = self.g / self.v.square().sum(1).sqrt()
        return torch.addcmul(self.bias, x @ self.v.T, scale)
