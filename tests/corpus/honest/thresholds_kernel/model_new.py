"""One loop over all elements, in C++.

task: thresholds
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/thresholds_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ends", torch.linspace(-2, 2, 9))

    def forward(self, x):
        bins, places = torch.empty(16), torch.empty(x.shape, dtype=torch.int64)
        above, shrunk = torch.empty(x.shape[0], dtype=torch.int64), torch.empty_like(x)
        kernel.thresholds(bins, places, above, shrunk, x, self.ends, *x.shape, self.ends.numel())
        return bins, places, above, shrunk
