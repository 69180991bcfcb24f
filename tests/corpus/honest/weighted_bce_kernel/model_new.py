"""Computes both logarithms from the decaying exponential, in C++.

task: weighted_bce
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/weighted_bce_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.register_buffer("pos_weight", torch.ones(classes))

    def forward(self, x, target):
        y = torch.empty(())
        kernel.weighted_bce(y, x, target, self.pos_weight, *x.shape)
        return y
