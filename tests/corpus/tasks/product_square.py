"""A product of square matrices plus a row; the shapes do not show the order of the factors."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return x.t() @ self.weight + self.bias


def get_inputs():
    return [torch.randn(33, 33)]


def get_init_inputs():
    return [33]
