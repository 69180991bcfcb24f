"""Each thread processes one segment and reads all rows, in C++.

task: segments
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/segments_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, values, index):
        y = torch.empty(8, values.shape[1])
        kernel.segments(y, values, index, values.shape[0], 8, values.shape[1])
        return y
