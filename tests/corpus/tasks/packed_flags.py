"""Signs of numbers packed into bytes, eight to a byte, with a short last byte."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        flags = F.pad((x > 0).to(torch.uint8), (0, -x.shape[1] % 8))
        powers = 2 ** torch.arange(8, device=x.device, dtype=torch.uint8)
        return (flags.view(x.shape[0], -1, 8) * powers).sum(-1, dtype=torch.uint8)


def get_inputs():
    return [torch.randn(10, 43)]


def get_init_inputs():
    return []
