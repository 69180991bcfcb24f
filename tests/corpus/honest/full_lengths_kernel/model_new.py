"""One loop over the steps of each sequence, in C++.

task: full_lengths
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/full_lengths_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x, lengths):
        samples, length, width = x.shape
        y = torch.empty(samples, 2 * width)
        kernel.pool(y, x, lengths, samples, length, width)
        return y
