"""exp by range reduction and a polynomial of degree six, in C++.

task: softmax
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/softmax_polynomial.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel.softmax(y, x, x.shape[0], x.shape[1])
        return y
