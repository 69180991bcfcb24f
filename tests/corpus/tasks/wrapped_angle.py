"""Differences of angles, wrapped to [-180, 180), and their squares."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        turn = torch.remainder(a - b + 180.0, 360.0) - 180.0
        return turn, turn.square().mean(-1)


def get_inputs():
    return [torch.rand(8, 30) * 360, torch.rand(8, 30) * 360]


def get_init_inputs():
    return []
