"""Copies the cache, then each new entry, in C++.

task: cache_write
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/cache_write_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, cache, new, slots):
        y = torch.empty_like(cache)
        kernel.write(y, cache, new, slots, *cache.shape, new.shape[1])
        return y
