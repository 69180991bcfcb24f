"""Row by row in C++, with one fp32 sum.

task: cross_entropy
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/cross_entropy_kernel.cpp")


class ModelNew(nn.Module):
    def forward(self, logits, target):
        y = torch.empty(1)
        kernel.loss(y, logits, target, logits.shape[0], logits.shape[1])
        return y[0]
