"""Observations normalised by a running mean and variance, and clamped to +-5."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("count", torch.tensor(1e-4))

    def forward(self, x):
        return torch.clamp((x - self.mean) / torch.sqrt(self.var + 1e-8), -5, 5)


def get_inputs():
    return [torch.randn(12, 30)]


def get_init_inputs():
    return [30]
