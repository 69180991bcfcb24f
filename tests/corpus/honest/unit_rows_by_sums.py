"""One sum of squares, one root and one division per row.

task: unit_rows
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        length = x.square().sum(-1, keepdim=True).sqrt()
        return x * (1 / length.clamp(min=1e-12))
