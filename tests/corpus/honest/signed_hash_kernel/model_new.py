"""Mixes the bits of each identifier, in C++.

task: signed_hash
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/signed_hash_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, buckets):
        super().__init__()
        self.buckets = buckets

    def forward(self, ids, values):
        y = torch.zeros(values.shape[0], self.buckets)
        kernel.hash(y, ids, values, *values.shape, self.buckets)
        return y
