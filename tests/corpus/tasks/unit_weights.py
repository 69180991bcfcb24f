"""A linear layer whose weight rows are scaled to given lengths."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.v = nn.Parameter(torch.randn(width, width))
        self.g = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        weight = self.g[:, None] * self.v / self.v.norm(dim=1, keepdim=True)
        return F.linear(x, weight, self.bias)


def get_inputs():
    return [torch.randn(20, 32)]


def get_init_inputs():
    return [32]
