"""A gated product of two halves in bfloat16."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.both = nn.Linear(width, 2 * width, dtype=torch.bfloat16)

    def forward(self, x):
        gate, value = self.both(x).chunk(2, -1)
        return F.silu(gate) * value


def get_inputs():
    return [torch.randn(12, 48, dtype=torch.bfloat16)]


def get_init_inputs():
    return [48]
