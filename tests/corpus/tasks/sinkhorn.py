"""Scores made doubly stochastic by 16 steps in the logarithmic domain."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = x * 2
        for _ in range(16):
            x = x - torch.logsumexp(x, -1, keepdim=True)
            x = x - torch.logsumexp(x, -2, keepdim=True)
        return torch.exp(x)


def get_inputs():
    return [torch.randn(6, 20, 20)]


def get_init_inputs():
    return []
