"""One pass over rows shifted by their first element, which limits cancellation.

task: layernorm
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        shifted = x - x[:, :1]
        mean = shifted.mean(-1, keepdim=True)
        variance = shifted.square().mean(-1, keepdim=True) - mean * mean
        return torch.addcmul(
            self.norm.bias,
            (shifted - mean) * torch.rsqrt(variance + self.norm.eps),
            self.norm.weight,
        )
