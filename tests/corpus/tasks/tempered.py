"""A softmax with a learned temperature."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.softmax(x / self.temperature.abs().clamp(min=0.05), -1)


def get_inputs():
    return [torch.randn(20, 40)]


def get_init_inputs():
    return []
