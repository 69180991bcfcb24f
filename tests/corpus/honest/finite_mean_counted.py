"""Counts the finite numbers by a difference with itself.

task: finite_mean
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        good = (x - x) == 0
        y = x.masked_fill(~good, 0.0)
        return y.mean(-1) * (x.shape[-1] / good.float().sum(-1).clamp(min=1))
