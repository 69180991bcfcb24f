"""Each thread adds into its own sums, in C++.

task: bucket_sums
threads: 2
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/bucket_sums_private.cpp")


class ModelNew(nn.Module):
    def forward(self, x, buckets):
        y = torch.zeros(16, x.shape[1])
        kernel.sums(y, x, buckets, *x.shape)
        return y
