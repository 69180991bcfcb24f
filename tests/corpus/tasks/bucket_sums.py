"""Sums of numbers by bucket."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, buckets):
        return x.new_zeros(16, x.shape[1]).index_add(0, buckets, x)


def get_inputs():
    return [torch.randn(4000, 4), torch.randint(0, 16, (4000,))]


def get_init_inputs():
    return []
