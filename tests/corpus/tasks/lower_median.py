"""Deviation of each number from the lower median of its row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        median = x.median(dim=1, keepdim=True).values
        spread = (x - median).abs().median(dim=1, keepdim=True).values
        return (x - median) / (spread + 1e-3)


def get_inputs():
    return [torch.randn(20, 36)]


def get_init_inputs():
    return []
