"""Rounds to bfloat16 once, at the end, instead of twice.

task: rmsnorm_bf16
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width, dtype=torch.bfloat16))

    def forward(self, x):
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (wide * scale * self.scale.float()).bfloat16()
