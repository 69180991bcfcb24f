"""Sorts and interpolates between neighbours.

task: quartiles
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("shares", torch.tensor([0.25, 0.5, 0.9]))

    def forward(self, x):
        place = self.shares * (x.shape[-1] - 1)
        low = place.floor().long()
        ordered = x.sort(-1).values
        before, after = ordered[:, low], ordered[:, (low + 1).clamp(max=x.shape[-1] - 1)]
        return torch.lerp(before, after, place - low).T.contiguous()
