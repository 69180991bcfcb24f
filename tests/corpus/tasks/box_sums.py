"""Means over boxes of 9 by 9."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return F.avg_pool2d(x[:, None], 9, stride=1)[:, 0]


def get_inputs():
    return [torch.randn(2, 24, 6000)]


def get_init_inputs():
    return []
