"""Hillis and Steele: distances 1, 2, 4 and so on.

task: cumsum
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y, step = x.clone(), 1
        while step < x.shape[1]:
            y[:, step:] += y[:, :-step].clone()
            step *= 2
        return y
