"""A gated projection in half precision."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(96, 128, bias=False, dtype=torch.half)
        self.up = nn.Linear(96, 128, bias=False, dtype=torch.half)

    def forward(self, x):
        return nn.functional.silu(self.gate(x)) * self.up(x)


def get_inputs():
    return [torch.randn(24, 96).half()]


def get_init_inputs():
    return []
