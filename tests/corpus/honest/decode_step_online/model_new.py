"""One pass over the filled part of the cache with a running maximum, in C++.

task: decode_step
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/decode_step_online.cpp")


class ModelNew(nn.Module):
    def forward(self, q, keys, values, position):
        y = torch.empty_like(q)
        heads, length, width = q.shape[0] * q.shape[1], keys.shape[2], q.shape[2]
        kernel.decode(y, q, keys, values, position, heads, length, width)
        return y
