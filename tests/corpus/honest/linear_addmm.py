"""One addmm call, and an in-place clamp of its result.

task: linear
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, x):
        return torch.addmm(self.linear.bias, x, self.linear.weight.t()).clamp_(min=0)
