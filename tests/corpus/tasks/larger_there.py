"""The larger of two numbers, or the other one if one is NaN."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return torch.fmax(a, b)


def get_inputs():
    return [torch.randn(10, 33), torch.randn(10, 33)]


def get_init_inputs():
    return []
