"""Rows rounded to int8 levels by their largest absolute value."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 127
        return torch.round(x / scale), scale


def get_inputs():
    return [torch.randn(14, 48)]


def get_init_inputs():
    return []
