"""The test is a comparison of the maximum, the share a count; the sum has another order.

task: beyond
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, a, b, c):
        s = c + b + a
        count = (s > 1).sum(-1)
        return s.amax(-1) > 1, count / s.shape[-1]
