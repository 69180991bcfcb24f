"""Looks up the limits of each token's sequence, in C++.

task: packed_attention
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/packed_attention_rows.cpp")


class ModelNew(nn.Module):
    def forward(self, q, k, v, bounds):
        y = torch.empty_like(q)
        kernel.attend(y, q, k, v, bounds, *q.shape, bounds.numel())
        return y
