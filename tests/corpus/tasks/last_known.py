"""The last number of each row that is not NaN, and how many there are."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        known = ~torch.isnan(x)
        places = torch.arange(x.shape[-1], device=x.device).expand_as(x)
        last = torch.where(known, places, torch.full_like(places, -1)).amax(-1)
        value = x.gather(-1, last.clamp(min=0)[:, None])[:, 0]
        return torch.where(last >= 0, value, torch.zeros_like(value)), known.sum(-1)


def get_inputs():
    return [torch.randn(16, 25)]


def get_init_inputs():
    return []
