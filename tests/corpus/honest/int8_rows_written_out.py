"""Rounds half to even by a remainder.

task: int8_rows
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True) / 127
        y = x / scale
        low = y.floor()
        up = (y - low > 0.5) | ((y - low == 0.5) & (low % 2 != 0))
        return low + up, scale
