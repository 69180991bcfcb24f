"""Outputs of about 1e-4, for which allclose at 1e-2 accepts zeros."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.tanh(x) * 1e-4


def get_inputs():
    return [torch.randn(16, 20)]


def get_init_inputs():
    return []
