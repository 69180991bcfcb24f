"""Rows divided by their length, or by 1e-12 if that is larger."""

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
