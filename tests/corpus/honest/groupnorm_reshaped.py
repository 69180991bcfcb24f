"""Groups are rows, in two passes, with SiLU as a division.

task: groupnorm
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        rows = x.view(x.shape[0], self.norm.num_groups, -1)
        variance, mean = torch.var_mean(rows, -1, unbiased=False, keepdim=True)
        y = ((rows - mean) * torch.rsqrt(variance + self.norm.eps)).view_as(x)
        y = y * self.norm.weight.view(1, -1, 1, 1) + self.norm.bias.view(1, -1, 1, 1)
        return y / (1 + torch.exp(-y))
