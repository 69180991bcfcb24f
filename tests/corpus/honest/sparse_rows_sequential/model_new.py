"""Adds the rows one after another, in C++.

task: sparse_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/sparse_rows_sequential.cpp")


class ModelNew(nn.Module):
    def forward(self, values, x, starts, columns):
        y = torch.empty(starts.shape[0] - 1)
        kernel.rows(y, values, x, starts, columns, y.shape[0])
        return y
