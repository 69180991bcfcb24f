"""Subnormal results flushed to zero, as the hardware does in a fast mode.

task: softmax
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.softmax(x, -1)
        return torch.where(y < torch.finfo(y.dtype).tiny, 0, y)
