"""A 3x3 convolution with padding, on inputs of one sign."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, padding=1)

    def forward(self, x):
        return self.conv(x)


def get_inputs():
    return [torch.rand(2, 3, 9, 11)]


def get_init_inputs():
    return [3, 8]
