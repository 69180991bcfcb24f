"""Numbers rounded to quarters."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.round(x * 4) / 4


def get_inputs():
    return [torch.randn(25, 30)]


def get_init_inputs():
    return []
