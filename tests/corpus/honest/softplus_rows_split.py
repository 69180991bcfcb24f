"""The positive part plus a decaying logarithm, without a threshold.

task: softplus_rows
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return (x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))).mean(-1)
