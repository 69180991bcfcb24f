"""The mean log-cosh loss of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, target):
        d = x - target
        return (d + nn.functional.softplus(-2 * d) - 0.6931471805599453).mean(-1)


def get_inputs():
    return [torch.randn(8, 80), torch.randn(8, 80)]


def get_init_inputs():
    return []
