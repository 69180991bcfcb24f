"""Sorts by counting, in C++.

task: keyed_order
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/keyed_order_counting.cpp")


class ModelNew(nn.Module):
    def forward(self, keys, values):
        order, sorted_values = torch.empty_like(keys), torch.empty_like(values)
        least = int(keys.min())
        kernel.order(order, sorted_values, keys, values, *keys.shape, least, int(keys.max()))
        return order, sorted_values
