"""Sums and counts in one pass over the rows, in C++.

task: segment_means
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/segment_means_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, segments):
        super().__init__()
        self.segments = segments

    def forward(self, values, ids):
        y = torch.empty(self.segments, values.shape[1])
        kernel.means(y, values, ids, values.shape[0], self.segments, values.shape[1])
        return y
