"""Rows of a table, selected by the interval of each number; a buffer holds the edges."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("edges", torch.linspace(-2, 2, 9))
        self.rows = nn.Embedding(10, width)

    def forward(self, x):
        return self.rows(torch.bucketize(x, self.edges, right=True))


def get_inputs():
    return [torch.randn(10, 12)]


def get_init_inputs():
    return [6]
