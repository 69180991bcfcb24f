"""Welford's recurrence and the maximum in one pass, in C++.

task: moments
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/moments_welford.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        mean, variance, top = (torch.empty(x.shape[0]) for _ in range(3))
        kernel.moments(mean, variance, top, x, x.shape[0], x.shape[1])
        return mean, variance, top
