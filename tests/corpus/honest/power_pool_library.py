"""Scales by the largest element, then averages powers.

task: power_pool
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.full((1,), 3.0))

    def forward(self, x):
        x = x.clamp(min=1e-3)
        top = x.amax((-2, -1), keepdim=True)
        return (x / top).pow(self.p).mean((-2, -1)).pow(1 / self.p) * top[..., 0, 0]
