"""BatchNorm2d in eval mode and a ReLU: running statistics are buffers."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        return torch.relu(self.norm(x))


def get_inputs():
    return [torch.randn(4, 6, 5, 7)]


def get_init_inputs():
    return [6]
