"""A GRU over six steps: the sequence and the last state."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gru = nn.GRU(width, hidden, batch_first=True)

    def forward(self, x):
        return self.gru(x)


def get_inputs():
    return [torch.randn(3, 6, 8)]


def get_init_inputs():
    return [8, 12]
