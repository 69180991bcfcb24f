"""One formula for both branches, with the difference clamped at the knee.

task: huber_rows
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, delta):
        super().__init__()
        self.delta = delta

    def forward(self, x, target):
        d = (x - target).abs()
        low = d.clamp(max=self.delta)
        return (low * (d - 0.5 * low)).mean(-1)
