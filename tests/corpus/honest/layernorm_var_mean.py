"""var_mean and a fused multiply-add.

task: layernorm
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        variance, mean = torch.var_mean(x, -1, unbiased=False, keepdim=True)
        return torch.addcmul(
            self.norm.bias, (x - mean) / (variance + self.norm.eps).sqrt(), self.norm.weight
        )
