"""Gathers the frames that cover each sample, in C++.

task: overlap_add
threads: 4
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/overlap_add_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, size, step):
        super().__init__()
        self.step = step
        self.register_buffer("window", torch.hann_window(size) + 0.1)

    def forward(self, frames):
        rows, many, size = frames.shape
        y = torch.empty(rows, (many - 1) * self.step + size)
        kernel.add(y, frames, self.window, rows, many, size, self.step)
        return y
