"""Indices of maxima: of scores from a product, of windows, and of prefixes."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(24, 30)

    def forward(self, x):
        best = self.scores(x).argmax(-1)
        peaks, places = F.max_pool1d(x, 5, stride=2, padding=1, return_indices=True)
        so_far, when = torch.cummax(x, dim=-1)
        return best, peaks, places, so_far, when


def get_inputs():
    return [torch.randn(9, 24)]


def get_init_inputs():
    return []
