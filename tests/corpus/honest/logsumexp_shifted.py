"""Subtracts the maximum first.

task: logsumexp
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        top = x.amax(1)
        return top + (x - top[:, None]).exp().sum(1).log()
