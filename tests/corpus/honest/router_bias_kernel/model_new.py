"""Selects the best remaining expert repeatedly, in C++.

task: router_bias
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/router_bias_kernel.cpp")


class ModelNew(nn.Module):
    def __init__(self, width, experts, chosen):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.bias = nn.Parameter(torch.zeros(experts))
        self.chosen = chosen

    def forward(self, x):
        scores = self.gate(x)
        y = torch.empty_like(scores)
        kernel.route(y, scores, self.bias, *scores.shape, self.chosen)
        return y
