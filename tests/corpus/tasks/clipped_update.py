"""Weights moved against a gradient whose norm is limited."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(rate))

    def forward(self, weight, gradient):
        norm = gradient.square().sum().sqrt()
        share = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        return weight - self.rate * share * gradient, norm


def get_inputs():
    return [torch.randn(20, 30), torch.randn(20, 30)]


def get_init_inputs():
    return [0.1]
