"""The inner axis in slices of sixteen columns, each added to the sum.

task: bounded
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4096, 48)

    def forward(self, x):
        weight, out = self.linear.weight.t(), torch.zeros(x.shape[0], 48)
        for k in range(0, x.shape[1], 16):
            out += x[:, k : k + 16] @ weight[k : k + 16]
        return out + self.linear.bias
