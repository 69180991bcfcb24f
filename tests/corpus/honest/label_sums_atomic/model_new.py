"""All threads add to the same sums with atomics.

task: label_sums
threads: 4
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/label_sums_atomic.cpp")


class ModelNew(nn.Module):
    def __init__(self, labels):
        super().__init__()
        self.labels = labels

    def forward(self, weights, label):
        sums, count = torch.zeros(self.labels), torch.zeros(self.labels)
        kernel.add(sums, count, weights, label, weights.numel())
        return sums, count
