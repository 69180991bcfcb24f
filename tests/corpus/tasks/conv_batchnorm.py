"""A convolution without bias and a BatchNorm that can be folded into it."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(out)

    def forward(self, x):
        return self.norm(self.conv(x))


def get_inputs():
    return [torch.rand(2, 8, 9, 7)]


def get_init_inputs():
    return [8, 6]
