"""Adds up whole turns along each row, in C++.

task: phase_steps
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/phase_steps_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, turn):
        super().__init__()
        self.turn = turn

    def forward(self, x):
        y = torch.empty_like(x)
        kernel.unwrap(y, x, *x.shape, self.turn)
        return y
