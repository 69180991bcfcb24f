"""Chunks of 60 steps are products with a triangular matrix; a state connects them.

task: moving_average
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.rate = nn.Parameter(torch.linspace(1, 4, channels))

    def forward(self, x):
        keep, chunk = torch.sigmoid(self.rate), 60
        steps = torch.arange(chunk, device=x.device)
        apart = steps[:, None] - steps
        powers = keep[:, None, None] ** apart.clamp(min=0) * (apart >= 0)
        fading = keep[:, None] ** (steps + 1)
        state, parts = torch.zeros_like(x[:, 0]), []
        for part in ((1 - keep) * x).split(chunk, 1):
            y = torch.einsum("cts,nsc->ntc", powers, part)
            y = y + torch.einsum("ct,nc->ntc", fading, state)
            state = y[:, -1]
            parts.append(y)
        return torch.cat(parts, 1)
