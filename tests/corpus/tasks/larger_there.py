"""The larger of two numbers, or the one that is there where the other is missing."""

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
