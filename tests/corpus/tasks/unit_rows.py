"""Rows of unit length, none of them divided by less than 1e-12."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return F.normalize(x, dim=-1)


def get_inputs():
    return [torch.randn(24, 200)]


def get_init_inputs():
    return []
