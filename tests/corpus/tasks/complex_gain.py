"""A complex spectrum times the conjugate of learned gains, and its power."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width, dtype=torch.complex64))

    def forward(self, x):
        y = x * self.gain.conj()
        return y, y.abs().square().sum(-1)


def get_inputs():
    return [torch.randn(6, 33, dtype=torch.complex64)]


def get_init_inputs():
    return [33]
