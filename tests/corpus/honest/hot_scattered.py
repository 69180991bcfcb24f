"""Writes a one at the largest element, the first of equal ones.

task: hot
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        place = torch.arange(x.shape[-1], device=x.device)
        first = place.where(x == x.amax(-1, keepdim=True), x.shape[-1]).amin(-1, keepdim=True)
        hot = torch.zeros_like(x).scatter(-1, first, 1.0)
        return hot, hot.sum(0) / x.shape[0]
