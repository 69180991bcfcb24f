"""A linear layer and a ReLU, on inputs of one sign."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.rand(32, 64)]


def get_init_inputs():
    return [64, 48]
