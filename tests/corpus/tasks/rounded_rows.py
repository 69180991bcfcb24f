"""Rows quantised to eight bits by their largest element."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().amax(dim=1, keepdim=True) / 127
        q = torch.clamp(torch.round(x / scale), -128, 127).to(torch.int8)
        return q, scale, q.float() * scale


def get_inputs():
    return [torch.randn(40, 130)]


def get_init_inputs():
    return []
