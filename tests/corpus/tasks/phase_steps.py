"""Unwrapped phases: steps are reduced to half a turn and summed."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, turn):
        super().__init__()
        self.turn = turn

    def forward(self, x):
        steps = x[:, 1:] - x[:, :-1]
        whole = torch.floor_divide(steps + self.turn / 2, self.turn) * self.turn
        return torch.cat([x[:, :1], x[:, 1:] - whole.cumsum(1)], 1)


def get_inputs():
    return [torch.randn(6, 40) * 6]


def get_init_inputs():
    return [8.0]
