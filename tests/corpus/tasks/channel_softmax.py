"""A 3D convolution, a softmax over channels and two poolings."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, cin, cout, k):
        super().__init__()
        self.conv = nn.Conv3d(cin, cout, k)
        self.pool1 = nn.MaxPool3d(2)
        self.pool2 = nn.MaxPool3d(2)

    def forward(self, x):
        x = torch.softmax(self.conv(x), dim=1)
        return self.pool2(self.pool1(x))


def get_inputs():
    return [torch.rand(4, 3, 11, 13, 14)]


def get_init_inputs():
    return [3, 8, 3]
