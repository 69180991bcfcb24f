"""One sequence after the other with two rows of sums, in C++.

task: label_paths
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/label_paths_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x, labels):
        y = torch.empty(x.shape[0])
        kernel.paths(y, x, labels, x.shape[0], x.shape[1], x.shape[2], labels.shape[1])
        return y
