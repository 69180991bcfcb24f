"""Reads the four neighbours of each sample for all channels; outside pixels are zero.

task: grid_sample
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/grid_sample_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x, places):
        batch, channels, height, width = x.shape
        _, rows, columns, _ = places.shape
        y = torch.empty(batch, channels, rows, columns)
        kernel.sample(y, x, places, batch, channels, height, width, rows * columns)
        return y
