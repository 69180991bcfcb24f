"""Two products with one weight.

task: tied_heads
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.shared = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)
        self.out.weight = self.shared.weight
        self.register_buffer("mask", torch.ones(width))

    def forward(self, x):
        weight = self.shared.weight.T
        return torch.addmm(self.out.bias, (x @ weight).tanh() * self.mask, weight)
