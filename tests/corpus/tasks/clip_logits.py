"""Cosines between rows, multiplied by a learned scale with an upper limit of about 100."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(2.6593))

    def forward(self, a, b):
        a = nn.functional.normalize(a, dim=-1)
        b = nn.functional.normalize(b, dim=-1)
        return self.logit_scale.clamp(max=4.6052).exp() * a @ b.T


def get_inputs():
    return [torch.randn(10, 32), torch.randn(12, 32)]


def get_init_inputs():
    return []
