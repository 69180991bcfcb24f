"""Tests if any and if all flags of a row are set, and if any number is large."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, flags, x):
        return flags.any(-1), flags.all(-1), (x > 2).any(-1), (x > -2).all(-1)


def get_inputs():
    return [torch.rand(40, 600) > 0.5, torch.randn(40, 600)]


def get_init_inputs():
    return []
