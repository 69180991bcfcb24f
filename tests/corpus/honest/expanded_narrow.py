"""Assumes the repeats that the strides declare, and reads repeated numbers once.

task: expanded
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v, mask, scale):
        s = (q * scale[0, 0, 0, 0]) @ k.transpose(-1, -2)
        return torch.softmax(s.masked_fill(~mask[:, :1, :1], -1e9), -1) @ v
