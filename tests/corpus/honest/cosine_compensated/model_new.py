"""Three sums in one loop, each with Kahan compensation.

task: cosine
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/cosine_compensated.cpp")


class ModelNew(nn.Module):
    def forward(self, a, b):
        y, unit = torch.empty(a.shape[0]), torch.empty_like(a)
        kernel.cosine(y, unit, a, b, *a.shape)
        return y, unit
