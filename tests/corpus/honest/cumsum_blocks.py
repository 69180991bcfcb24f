"""Sums within blocks of ten, plus the offset of each block.

task: cumsum
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        blocks = x.view(x.shape[0], -1, 10)
        within = torch.stack([blocks[..., : i + 1].sum(-1) for i in range(10)], -1)
        offsets = torch.zeros_like(within[..., -1])
        for b in range(1, offsets.shape[1]):
            offsets[:, b] = offsets[:, b - 1] + within[:, b - 1, -1]
        return (within + offsets[..., None]).view_as(x)
