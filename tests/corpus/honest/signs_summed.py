"""Counts are sums of signs, slopes use where.

task: signs
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.rectifier = nn.PReLU(40)

    def forward(self, x):
        sign = torch.sign(x).long()
        positive = sign.clamp(min=0).sum(-1)
        return positive, sign.abs().sum(0), torch.where(x > 0, x, x * self.rectifier.weight)
