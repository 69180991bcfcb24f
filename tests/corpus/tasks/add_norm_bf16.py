"""A sum in bfloat16 and its layer norm, which the next block takes both."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(192, dtype=torch.bfloat16)

    def forward(self, x, residual):
        total = x + residual
        return self.norm(total), total


def get_inputs():
    return [torch.randn(40, 192).bfloat16(), torch.randn(40, 192).bfloat16()]


def get_init_inputs():
    return []
