"""A linear recurrence along time, h = a h + x, with one decay per channel."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.decay = nn.Parameter(torch.rand(channels))

    def forward(self, x):
        decay = torch.sigmoid(self.decay)
        state = torch.zeros_like(x[:, 0])
        states = []
        for step in x.unbind(1):
            state = decay * state + step
            states.append(state)
        return torch.stack(states, 1)


def get_inputs():
    return [torch.randn(3, 37, 5)]


def get_init_inputs():
    return [5]
