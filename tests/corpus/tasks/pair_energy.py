"""The total energy of all pairs of points."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, points):
        d = (points[:, None] - points).square().sum(-1)
        return torch.exp(-d).triu(1).sum()


def get_inputs():
    return [torch.randn(250, 3)]


def get_init_inputs():
    return []
