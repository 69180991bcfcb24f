"""Counts set flags instead of testing if any is set.

task: flags
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, flags, x):
        width, count = flags.shape[-1], flags.sum(-1)
        return count > 0, count == width, x.amax(-1) > 2, (x > -2).sum(-1) == width
