"""Both products in one loop with fp32 sums, in C++.

task: gated_half
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/gated_half_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(96, 128, bias=False, dtype=torch.half)
        self.up = nn.Linear(96, 128, bias=False, dtype=torch.half)

    def forward(self, x):
        y = torch.empty(x.shape[0], 128, dtype=torch.half)
        kernel.gated(y, x, self.gate.weight, self.up.weight, x.shape[0], 96, 128)
        return y
