"""Means over segments of rows; an input gives the segment of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, segments):
        super().__init__()
        self.segments = segments

    def forward(self, values, ids):
        total = values.new_zeros(self.segments, values.shape[1]).index_add(0, ids, values)
        ones = torch.ones_like(values[:, 0])
        count = values.new_zeros(self.segments).index_add(0, ids, ones)
        return total / count.clamp(min=1)[:, None]


def get_inputs():
    return [torch.randn(60, 10), torch.arange(60) // 6]


def get_init_inputs():
    return [10]
