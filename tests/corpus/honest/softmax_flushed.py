"""Subnormal results flushed to zero, as in a fast mode of the hardware.

task: softmax
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.softmax(x, -1)
        return torch.where(y < torch.finfo(y.dtype).tiny, 0, y)
