"""The state of one channel stays in registers; one loop runs over all steps.

task: selective_scan
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/selective_scan_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width, states):
        super().__init__()
        self.log_rate = nn.Parameter(torch.empty(width, states))
        self.skip = nn.Parameter(torch.empty(width))

    def forward(self, x, step, b, c):
        y = torch.empty_like(x)
        kernel.scan(y, x, step, b, c, self.log_rate, self.skip, *x.shape, b.shape[2])
        return y
