"""One row of scores at a time, in C++.

task: score_mask
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/score_mask_rows.cpp")


class ModelNew(nn.Module):
    def forward(self, q, k, v, mask):
        y = torch.empty_like(q)
        heads = q.shape[0] * q.shape[1]
        kernel.attend(y, q, k, v, mask, heads, *q.shape[2:])
        return y
