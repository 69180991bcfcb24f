"""The maximum and the sum start with the sink, in C++.

task: sink_softmax
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/sink_softmax_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.sink = nn.Parameter(torch.zeros(heads))

    def forward(self, scores):
        y = torch.empty_like(scores)
        samples, heads, length, width = scores.shape
        kernel.softmax(y, scores, self.sink, samples * heads * length, heads, length, width)
        return y
