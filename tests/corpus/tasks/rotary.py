"""Rotary position embedding: pairs of channels rotated by an angle that grows with position."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        length, half = x.shape[-2], x.shape[-1] // 2
        rate = 10000 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
        angle = torch.arange(length, device=x.device, dtype=x.dtype)[:, None] * rate
        first, second = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def get_inputs():
    return [torch.randn(2, 3, 16, 16)]


def get_init_inputs():
    return []
