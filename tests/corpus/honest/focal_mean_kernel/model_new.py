"""One pass in C++ with a sum in double precision.

task: focal_mean
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/focal_mean_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, alpha, gamma):
        super().__init__()
        self.alpha, self.gamma = alpha, gamma

    def forward(self, x, target):
        y = torch.empty(())
        kernel.focal(y, x, target, self.alpha, self.gamma, x.numel())
        return y
