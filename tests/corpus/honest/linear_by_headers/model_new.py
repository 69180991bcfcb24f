"""The sum is in a header named by a macro, the ReLU in a header named after a comment.

task: linear
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/linear.cpp")


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        y = torch.empty(x.shape[0], self.linear.out_features)
        kernel.linear(
            y, x, self.linear.weight, self.linear.bias, x.shape[0], x.shape[1], y.shape[1]
        )
        return y
