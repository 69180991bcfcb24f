"""Both poolings in one C++ source.

task: pooling
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/pooling_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        n, c, height, width = x.shape
        largest = torch.empty(n, c, height // 2, width // 2)
        average = torch.empty(n, c, (height + 1) // 2, (width + 1) // 2)
        kernel.maxima(largest, x, n * c, height, width)
        kernel.averages(average, x, n * c, height, width)
        return largest, average
