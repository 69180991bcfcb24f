"""Two heads that share one weight, the second transposed and gated by a mask."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.shared = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)
        self.out.weight = self.shared.weight
        self.register_buffer("mask", torch.ones(width))

    def forward(self, x):
        return self.out(torch.tanh(self.shared(x)) * self.mask)


def get_inputs():
    return [torch.randn(14, 20)]


def get_init_inputs():
    return [20]
