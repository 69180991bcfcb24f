"""A PReLU with a learned slope per channel."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.act = nn.PReLU(channels)

    def forward(self, x):
        return self.act(x)


def get_inputs():
    return [torch.randn(3, 6, 9, 9)]


def get_init_inputs():
    return [6]
