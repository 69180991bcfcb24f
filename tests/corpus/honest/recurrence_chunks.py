"""Eight steps per chunk with powers of the decay, and a state between chunks.

task: recurrence
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    CHUNK = 8

    def __init__(self, channels):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(channels))

    def forward(self, x):
        decay = torch.sigmoid(self.decay)
        steps = torch.arange(self.CHUNK + 1)[:, None]
        power = decay**steps
        lag = steps[:-1] - steps[:-1].t()
        kernel = torch.where(lag[..., None] >= 0, decay ** lag.clamp(min=0)[..., None], 0.0)
        state, parts = torch.zeros_like(x[:, 0]), []
        for chunk in x.split(self.CHUNK, 1):
            size = chunk.shape[1]
            part = torch.einsum("tsc,nsc->ntc", kernel[:size, :size], chunk)
            part = part + power[1 : size + 1] * state[:, None]
            state = part[:, -1]
            parts.append(part)
        return torch.cat(parts, 1)
