"""Rows in float64 with mean 0 and variance 1."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        centred = x - x.mean(dim=1, keepdim=True)
        return centred / torch.sqrt((centred * centred).mean(dim=1, keepdim=True) + 1e-12)


def get_inputs():
    return [torch.randn(16, 200, dtype=torch.float64)]


def get_init_inputs():
    return []
