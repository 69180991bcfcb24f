"""The state that a contraction reaches in 24 steps."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(16, 16)
        with torch.no_grad():
            self.mix.weight.mul_(0.5)

    def forward(self, x):
        z = torch.zeros_like(x)
        for _ in range(24):
            z = torch.tanh(self.mix(z) + x)
        return z


def get_inputs():
    return [torch.randn(32, 16)]


def get_init_inputs():
    return []
