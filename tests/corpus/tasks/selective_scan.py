"""A state space model whose step size depends on its input."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, width, states):
        super().__init__()
        self.log_rate = nn.Parameter(torch.arange(1, states + 1).float().log().repeat(width, 1))
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x, step, b, c):
        rate, step = -torch.exp(self.log_rate), F.softplus(step)
        state = torch.zeros(x.shape[0], *rate.shape)
        outputs = []
        for t in range(x.shape[1]):
            decay = torch.exp(step[:, t, :, None] * rate)
            state = decay * state + (step[:, t] * x[:, t])[..., None] * b[:, t, None]
            outputs.append((state * c[:, t, None]).sum(-1))
        return torch.stack(outputs, 1) + x * self.skip


def get_inputs():
    return [
        torch.randn(2, 20, 12),
        torch.randn(2, 20, 12),
        torch.randn(2, 20, 8),
        torch.randn(2, 20, 8),
    ]


def get_init_inputs():
    return [12, 8]
