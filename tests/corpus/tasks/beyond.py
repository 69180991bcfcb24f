"""A test if any sum of three numbers exceeds one, and the share of sums that do."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b, c):
        s = a + b + c
        return (s > 1).any(-1), (s > 1).float().mean(-1)


def get_inputs():
    return [torch.randn(40, 300) for _ in range(3)]


def get_init_inputs():
    return []
