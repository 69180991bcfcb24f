"""Two passes over each group in C++, sums in fp64.

task: groupnorm
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/groupnorm_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        y = torch.empty_like(x)
        norm = self.norm
        kernel.groupnorm(
            y,
            x,
            norm.weight,
            norm.bias,
            norm.eps,
            x.shape[0],
            x.shape[1],
            x[0, 0].numel(),
            norm.num_groups,
        )
        return y
