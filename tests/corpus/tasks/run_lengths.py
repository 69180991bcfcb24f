"""Rows repeated as often as given counts say, to a fixed length."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def forward(self, rows, counts):
        places = torch.arange(self.length, device=rows.device)
        which = torch.searchsorted(counts.cumsum(0), places, right=True)
        inside = which < rows.shape[0]
        taken = rows[which.clamp(max=rows.shape[0] - 1)]
        return torch.where(inside[:, None], taken, torch.zeros_like(taken))


def get_inputs():
    return [torch.randn(8, 12), torch.full((8,), 4)]


def get_init_inputs():
    return [40]
