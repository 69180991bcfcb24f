"""The mean and the last step of padded sequences."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, lengths):
        inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        total = x.masked_fill(~inside[..., None], 0).sum(1)
        mean = total / lengths.clamp(min=1)[:, None]
        at = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[2])
        return torch.cat([mean, x.gather(1, at).squeeze(1)], -1)


def get_inputs():
    return [torch.randn(6, 20, 8), torch.full((6,), 20)]


def get_init_inputs():
    return []
