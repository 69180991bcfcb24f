"""Numbers rounded to an int8 grid with a scale and a zero point per channel."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.full((width,), 0.0625))
        self.register_buffer("zero", torch.zeros(width))

    def forward(self, x):
        level = torch.round(x / self.scale) + self.zero
        return (level.clamp(-128, 127) - self.zero) * self.scale


def get_inputs():
    return [torch.randn(20, 24)]


def get_init_inputs():
    return [24]
