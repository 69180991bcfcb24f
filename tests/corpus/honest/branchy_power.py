"""A power of one half: NaN where the input is negative.

task: branchy
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.pow(0.5)
