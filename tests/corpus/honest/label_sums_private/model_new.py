"""Each thread has private sums, which are added at the end.

task: label_sums
threads: 4
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/label_sums_private.cpp")


class ModelNew(nn.Module):
    def __init__(self, labels):
        super().__init__()
        self.labels = labels

    def forward(self, weights, label):
        sums, count = torch.empty(self.labels), torch.empty(self.labels)
        kernel.add(sums, count, weights, label, weights.numel(), self.labels)
        return sums, count
