"""Entries of a table at rounded coordinates."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, table):
        return table[x.round().clamp(0, 31).long()]


def get_inputs():
    return [torch.rand(200) * 31, torch.randn(32, 5)]


def get_init_inputs():
    return []
