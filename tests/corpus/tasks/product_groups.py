"""A product, a GroupNorm and a clamp."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n, m, groups, lo, hi):
        super().__init__()
        self.gemm = nn.Linear(n, m)
        self.norm = nn.GroupNorm(groups, m)
        self.tanh = nn.Hardtanh(lo, hi)

    def forward(self, x):
        return self.tanh(self.norm(self.gemm(x)))


def get_inputs():
    return [torch.randn(33, 70)]


def get_init_inputs():
    return [70, 48, 6, -2.0, 2.0]
