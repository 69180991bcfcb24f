"""A block that is initialised as the identity: its last weight is zero."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x + self.gain * torch.tanh(self.inner(x))


def get_inputs():
    return [torch.randn(12, 20)]


def get_init_inputs():
    return [20]
