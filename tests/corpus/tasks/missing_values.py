"""Missing numbers are replaced by a learned number; the output includes which were missing."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fill = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        missing = torch.isnan(x)
        return torch.cat([torch.where(missing, self.fill, x), missing.to(x.dtype)], -1)


def get_inputs():
    return [torch.randn(15, 16)]


def get_init_inputs():
    return [16]
