"""Computes in channels-last format and returns a tensor with those strides.

task: conv2d
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inside, out):
        super().__init__()
        self.conv = nn.Conv2d(inside, out, 3, padding=1)

    def forward(self, x):
        rows = nn.functional.unfold(x, 3, padding=1).transpose(1, 2)
        y = rows @ self.conv.weight.flatten(1).t() + self.conv.bias
        return y.view(x.shape[0], *x.shape[2:], -1).permute(0, 3, 1, 2)
