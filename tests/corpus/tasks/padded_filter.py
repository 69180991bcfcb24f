"""A filter of seven taps over padded lines."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(7))

    def forward(self, x):
        return F.conv1d(F.pad(x, (3, 3))[:, None], self.taps.view(1, 1, 7))[:, 0]


def get_inputs():
    return [torch.randn(6, 1500)]


def get_init_inputs():
    return []
