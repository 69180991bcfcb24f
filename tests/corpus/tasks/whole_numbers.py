"""Four roundings to whole numbers, and the fractional part."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x * 4
        left = x - torch.floor(x)
        return torch.floor(x), torch.ceil(x), torch.round(x), torch.trunc(x), left


def get_inputs():
    return [torch.randn(6, 40)]


def get_init_inputs():
    return []
