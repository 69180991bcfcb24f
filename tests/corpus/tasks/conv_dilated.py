"""A convolution with stride, dilation, padding and groups, and a ReLU6."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, stride=2, padding=2, dilation=2, groups=2)

    def forward(self, x):
        return F.relu6(self.conv(x))


def get_inputs():
    return [torch.randn(2, 4, 13, 10)]


def get_init_inputs():
    return [4, 6]
