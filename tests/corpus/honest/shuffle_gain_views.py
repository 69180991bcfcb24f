"""Gain first, then one permutation that leaves a view to copy.

task: shuffle_gain
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x):
        n, c, h, w = x.shape
        x = x.view(n, c // 4, 2, 2, h, w) * self.gain[:, None, None, None, None]
        return x.permute(0, 1, 4, 2, 5, 3).reshape(n, c // 4, 2 * h, 2 * w)
