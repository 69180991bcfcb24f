"""Uses on each side of zero the formula that is exact there.

task: activations
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/activations_branches.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        outputs = [torch.empty_like(x) for _ in range(3)]
        kernel.activations(*outputs, x, x.numel())
        return tuple(outputs)
