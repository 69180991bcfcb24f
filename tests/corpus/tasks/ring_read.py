"""The newest values of a ring buffer, weighted by age."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.fade = nn.Parameter(torch.linspace(1.0, 0.1, size))

    def forward(self, ring, head):
        ages = torch.arange(ring.shape[1], device=ring.device)
        places = (head[:, None] - 1 - ages) % ring.shape[1]
        return torch.gather(ring, 1, places) * self.fade


def get_inputs():
    return [torch.randn(6, 24), torch.full((6,), 9)]


def get_init_inputs():
    return [24]
