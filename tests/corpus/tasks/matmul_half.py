"""A product of half-precision matrices."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(16, 48).half(), torch.randn(48, 24).half()]


def get_init_inputs():
    return []
