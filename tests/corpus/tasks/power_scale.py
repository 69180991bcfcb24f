"""Numbers rounded to a grid whose step is a given power of two per row."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, exponent):
        step = torch.exp2(exponent.to(x.dtype))[:, None]
        return torch.round(x / step).clamp(-8, 7) * step


def get_inputs():
    return [torch.randn(16, 32), torch.full((16,), -2)]


def get_init_inputs():
    return []
