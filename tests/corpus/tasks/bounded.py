"""A product with a long inner axis, on inputs in [0, 1)."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4096, 48)

    def forward(self, x):
        return self.linear(x)


def get_inputs():
    return [torch.rand(64, 4096)]


def get_init_inputs():
    return []
