"""Insertion sort in C++, which keeps equal elements in order.

task: sorting
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/sorting_insertion.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        values, places = torch.empty_like(x), torch.empty(x.shape, dtype=torch.int64)
        kernel.insertion(values, places, x, x.shape[0], x.shape[1])
        return values, places
