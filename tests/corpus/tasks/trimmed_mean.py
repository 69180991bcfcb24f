"""The mean of the middle half of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        cut = x.shape[-1] // 4
        return x.sort(-1).values[..., cut : x.shape[-1] - cut].mean(-1)


def get_inputs():
    return [torch.randn(96, 44)]


def get_init_inputs():
    return []
