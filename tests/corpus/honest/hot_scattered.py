"""Writes a one at the largest element, the last of equal ones.

task: hot
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        last = x.shape[-1] - 1 - x.flip(-1).argmax(-1, keepdim=True)
        hot = torch.zeros_like(x).scatter(-1, last, 1.0)
        return hot, hot.sum(0) / x.shape[0]
