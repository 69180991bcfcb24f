"""A linear layer with four-bit weights in groups, each with a scale and a zero point."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, rows, width, group):
        super().__init__()
        self.group = group
        codes = torch.randint(0, 256, (rows, width // 2), dtype=torch.uint8)
        self.register_buffer("codes", codes)
        self.scale = nn.Parameter(torch.rand(rows, width // group) * 0.1 + 0.02)
        self.register_buffer("zero", torch.full((rows, width // group), 8, dtype=torch.uint8))

    def forward(self, x):
        low, high = self.codes & 15, self.codes >> 4
        digits = torch.stack([low, high], -1).flatten(1).view(*self.zero.shape, self.group)
        whole = digits.to(x.dtype) - self.zero[..., None].to(x.dtype)
        return F.linear(x, (whole * self.scale[..., None].to(x.dtype)).flatten(1))


def get_inputs():
    return [torch.randn(8, 64)]


def get_init_inputs():
    return [24, 64, 16]
