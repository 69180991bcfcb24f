"""One loop over the inputs that writes each to its place, in C++.

task: shuffle_gain
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/shuffle_gain_scatter.cpp")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x):
        n, c, h, w = x.shape
        y = torch.empty(n, c // 4, 2 * h, 2 * w)
        kernel.shuffle(y, x, self.gain, n, c // 4, h, w)
        return y
