"""Elements above a learned threshold per channel."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.threshold = nn.Parameter(torch.zeros(20))

    def forward(self, x):
        return x * (x > self.threshold)


def get_inputs():
    return [torch.randn(32, 20)]


def get_init_inputs():
    return []
