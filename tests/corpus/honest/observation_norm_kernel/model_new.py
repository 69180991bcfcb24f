"""All steps in one pass, in C++.

task: observation_norm
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/observation_norm_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))
        self.register_buffer("count", torch.tensor(1e-4))

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.normalise(y, x, self.mean, self.var, *x.shape)
        return y
