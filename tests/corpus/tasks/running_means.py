"""The mean of all numbers so far."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.cumsum(-1) / torch.arange(1, x.shape[-1] + 1)


def get_inputs():
    return [torch.randn(4, 6000)]


def get_init_inputs():
    return []
