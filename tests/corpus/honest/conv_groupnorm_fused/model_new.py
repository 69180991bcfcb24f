"""Stores the convolution of each group in a buffer and normalises it there.

task: conv_groupnorm
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/conv_groupnorm_fused.cpp")


class ModelNew(nn.Module):
    def __init__(self, inside, out, groups):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3)
        self.norm = nn.GroupNorm(groups, out)

    def forward(self, x):
        conv, norm = self.conv, self.norm
        out = conv.out_channels
        y = torch.empty(x.shape[0], out, x.shape[2] - 2, x.shape[3] - 2)
        sizes = (*x.shape, out, norm.num_groups)
        kernel.forward(y, x, conv.weight, conv.bias, norm.weight, norm.bias, norm.eps, *sizes)
        return y
