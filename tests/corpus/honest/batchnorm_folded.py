"""The statistics are folded into one factor and one offset per channel.

task: batchnorm
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        factor = self.norm.weight / torch.sqrt(self.norm.running_var + self.norm.eps)
        offset = self.norm.bias - self.norm.running_mean * factor
        return torch.relu(torch.addcmul(offset.view(1, -1, 1, 1), x, factor.view(1, -1, 1, 1)))
