"""The largest number of each row without regard to missing ones."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.masked_fill(x.isnan(), float("-inf")).amax(-1)


def get_inputs():
    return [torch.randn(18, 33)]


def get_init_inputs():
    return []
