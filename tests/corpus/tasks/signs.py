"""Counts of signs, by row and by column, and a PReLU with a slope per channel."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rectifier = nn.PReLU(40)

    def forward(self, x):
        return (x > 0).sum(-1), torch.count_nonzero(x, dim=0), self.rectifier(x)


def get_inputs():
    return [torch.randn(18, 40)]


def get_init_inputs():
    return []
