"""A scaled tensor with exchanged axes."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return x.permute(0, 2, 1) * 0.5


def get_inputs():
    return [torch.randn(3, 7, 10)]


def get_init_inputs():
    return []
