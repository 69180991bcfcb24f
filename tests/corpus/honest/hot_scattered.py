"""A one is written where the largest is, of equals the last.

task: hot
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        last = x.shape[-1] - 1 - x.flip(-1).argmax(-1, keepdim=True)
        hot = torch.zeros_like(x).scatter(-1, last, 1.0)
        return hot, hot.sum(0) / x.shape[0]
