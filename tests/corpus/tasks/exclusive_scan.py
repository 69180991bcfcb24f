"""The sum of all elements before each element of a long row."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return nn.functional.pad(torch.cumsum(x, -1)[..., :-1], (1, 0))


def get_inputs():
    return [torch.randn(3, 8192)]


def get_init_inputs():
    return []
