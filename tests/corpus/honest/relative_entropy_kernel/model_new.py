"""One pass over each row of counts, in C++.

task: relative_entropy
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/relative_entropy_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.rates = nn.Parameter(torch.randn(classes))

    def forward(self, counts):
        y = torch.empty(counts.shape[0])
        kernel.entropy(y, counts, torch.log_softmax(self.rates, 0), *counts.shape)
        return y
