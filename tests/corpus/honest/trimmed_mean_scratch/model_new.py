"""Each thread sorts a copy of a row, in C++.

task: trimmed_mean
threads: 4
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/trimmed_mean_scratch.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape[0])
        kernel.trimmed(y, x, *x.shape)
        return y
