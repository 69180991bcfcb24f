"""A cache with new entries written to the slots in an input."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, cache, new, slots):
        return cache.index_copy(1, slots, new)


def get_inputs():
    return [torch.randn(3, 24, 8), torch.randn(3, 6, 8), torch.arange(12, 18)]


def get_init_inputs():
    return []
