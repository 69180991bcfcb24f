"""Mean, centred squares, scale.

task: layernorm
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.norm.eps)
        return centred * scale * self.norm.weight + self.norm.bias
