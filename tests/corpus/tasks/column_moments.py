"""Means and variances of columns."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return x.mean(0), x.var(0, unbiased=False)


def get_inputs():
    return [torch.randn(512, 48)]


def get_init_inputs():
    return []
