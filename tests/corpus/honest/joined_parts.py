"""Writes all parts into one tensor.

task: joined
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty(len(a) + len(b), a.shape[1])
        y[: len(a)], y[len(a) :] = a + a, b + b
        return y, torch.cat([a, b]).sum(0)[None]
