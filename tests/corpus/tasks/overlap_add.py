"""Windowed frames added with overlap, divided by the sum of the squared window."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, size, step):
        super().__init__()
        self.step = step
        self.register_buffer("window", torch.hann_window(size) + 0.1)

    def forward(self, frames):
        many, size = frames.shape[1:]
        length = (many - 1) * self.step + size
        total = frames.new_zeros(frames.shape[0], length)
        weight = frames.new_zeros(length)
        for k in range(many):
            part = slice(k * self.step, k * self.step + size)
            total[:, part] += frames[:, k] * self.window
            weight[part] += self.window.square()
        return total / weight


def get_inputs():
    return [torch.randn(3, 9, 32)]


def get_init_inputs():
    return [32, 12]
