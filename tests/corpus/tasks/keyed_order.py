"""The order of integer keys, equal ones as they come, and the values in it."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, keys, values):
        order = torch.argsort(keys, dim=1, stable=True)
        return order, values.gather(1, order)


def get_inputs():
    return [torch.randint(0, 6, (5, 40)), torch.randn(5, 40)]


def get_init_inputs():
    return []
