"""A transposed product and a narrow view of it."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        y = self.linear(x).transpose(1, 2)
        return y, y[:, ::2]


def get_inputs():
    return [torch.randn(3, 10, 16)]


def get_init_inputs():
    return [16]
