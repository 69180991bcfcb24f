"""A convex mixture of two branches by a learned gate."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.full((16,), -12.0))

    def forward(self, x, y):
        g = torch.sigmoid(self.gate)
        return (1 - g) * x + g * torch.tanh(y)


def get_inputs():
    return [torch.randn(25, 16), torch.randn(25, 16)]


def get_init_inputs():
    return []
