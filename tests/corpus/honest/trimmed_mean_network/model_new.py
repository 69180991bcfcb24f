"""Pads rows with infinity to a power of two and sorts them with a bitonic network.

task: trimmed_mean
threads: 4
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/trimmed_mean_network.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        kernel.trimmed(y, x, *x.shape)
        return y
