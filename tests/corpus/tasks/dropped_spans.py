"""A spectrogram in which given spans of time and of frequency are replaced by its mean."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, start, width, low, high):
        t = torch.arange(x.shape[2], device=x.device)
        f = torch.arange(x.shape[1], device=x.device)
        in_time = (t >= start[:, None]) & (t < (start + width)[:, None])
        in_band = (f >= low[:, None]) & (f < high[:, None])
        hidden = in_time[:, None, :] | in_band[:, :, None]
        return torch.where(hidden, x.mean((1, 2), keepdim=True), x)


def get_inputs():
    spans = [torch.full((4,), n) for n in (10, 6, 3, 7)]
    return [torch.randn(4, 16, 40), *spans]


def get_init_inputs():
    return []
