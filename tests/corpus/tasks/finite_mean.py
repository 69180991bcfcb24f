"""The mean of the finite numbers of each row; of none it is zero."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        good = torch.isfinite(x)
        total = torch.where(good, x, 0.0).sum(-1)
        return total / good.sum(-1).clamp(min=1)


def get_inputs():
    return [torch.randn(18, 40)]


def get_init_inputs():
    return []
