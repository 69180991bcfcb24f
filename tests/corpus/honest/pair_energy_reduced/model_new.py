"""Threads share the loop over the first point; OpenMP reduces their sums.

task: pair_energy
threads: 4
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/pair_energy_reduced.cpp")


class ModelNew(nn.Module):
    def forward(self, points):
        y = torch.empty(())
        kernel.energy(y, points, points.shape[0])
        return y
