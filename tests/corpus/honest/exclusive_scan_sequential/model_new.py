"""A sequential sum in double precision.

task: exclusive_scan
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/exclusive_scan_sequential.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.scan(y, x, *x.shape)
        return y
