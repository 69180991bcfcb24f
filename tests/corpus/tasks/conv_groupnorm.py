"""A convolution, a GroupNorm of its output, and a ReLU."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inside, out, groups):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3)
        self.norm = nn.GroupNorm(groups, out)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


def get_inputs():
    return [torch.rand(2, 3, 10, 9)]


def get_init_inputs():
    return [3, 8, 4]
