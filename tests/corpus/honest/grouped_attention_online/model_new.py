"""Online softmax over tiles of 16 keys; each query ends at its last visible key.

task: grouped_attention
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/grouped_attention_online.cpp")


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        y = torch.empty_like(q)
        kernel.attention(y, q, k, v, *q.shape, *k.shape[1:3], q.shape[-1] ** -0.5)
        return y
