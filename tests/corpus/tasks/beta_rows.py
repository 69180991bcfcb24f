"""The negative log likelihood of a Beta distribution with predicted shapes, by rows."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b, x):
        a = nn.functional.softplus(a) + 0.05
        b = nn.functional.softplus(b) + 0.05
        norm = torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)
        return (norm - (a - 1) * torch.log(x) - (b - 1) * torch.log1p(-x)).mean(1)


def get_inputs():
    x = torch.rand(16, 48) * 0.98 + 0.01
    return [torch.randn(16, 48), torch.randn(16, 48), x]


def get_init_inputs():
    return []
