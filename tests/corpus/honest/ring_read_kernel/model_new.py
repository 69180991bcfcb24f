"""Walks backwards through the ring, in C++.

task: ring_read
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/ring_read_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.fade = nn.Parameter(torch.linspace(1.0, 0.1, size))

    def forward(self, ring, head):
        y = torch.empty_like(ring)
        kernel.walk(y, ring, head, self.fade.detach(), *ring.shape)
        return y
