"""x + sin(a x)^2 / a, with a learned rate per channel."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.rate = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x):
        return x + torch.sin(self.rate * x) ** 2 / (self.rate + 1e-9)


def get_inputs():
    return [torch.randn(4, 6, 50)]


def get_init_inputs():
    return [6]
