"""A linear layer with long sums, on inputs of one sign, which distinguish TF32 from fp32."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        return self.linear(x)


def get_inputs():
    return [torch.rand(8, 16384)]


def get_init_inputs():
    return [16384, 16]
