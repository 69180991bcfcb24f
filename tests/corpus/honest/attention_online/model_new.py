"""One key after the other with a running maximum and sum, in C++.

task: attention
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/attention_online.cpp")


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        y = torch.empty_like(q)
        kernel.attention(
            y, q, k, v, q.shape[0] * q.shape[1], q.shape[2], q.shape[3], q.shape[3] ** -0.5
        )
        return y
