"""Few rows of a table, so that a verdict's own draws leave most of them out."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(999, 8))

    def forward(self, index, x):
        return self.table[index] * x


def get_inputs():
    return [torch.randint(0, 999, (16,)), torch.randn(16, 8)]


def get_init_inputs():
    return []
