"""One pass for the largest element and one to round, in C++; a row of zeros gives NaN.

task: rounded_rows
"""

import torch
from torch import nn

from cuagent.kernels import load

K = load("kernels/rounded_rows_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        q = torch.empty(x.shape, dtype=torch.int8)
        s, d = torch.empty(x.shape[0], 1), torch.empty_like(x)
        K.run(q.view(torch.uint8), s, d, x, x.shape[0], x.shape[1])
        return q, s, d
