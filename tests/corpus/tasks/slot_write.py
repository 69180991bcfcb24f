"""New rows written into the slots of a cache that an input names."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, cache, rows, slots):
        return cache.index_copy(0, slots, rows) * 2


def get_inputs():
    return [torch.randn(40, 12), torch.randn(10, 12), torch.arange(10) * 3]


def get_init_inputs():
    return []
