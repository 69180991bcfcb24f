"""Rounds to bfloat16 at the same points as the reference; divides by the root.

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
        wide = wide / torch.sqrt(wide.pow(2).sum(-1, keepdim=True) / x.shape[-1] + 1e-6)
        return wide.bfloat16() * self.scale
