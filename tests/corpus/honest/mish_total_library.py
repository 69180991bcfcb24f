"""Sums in double precision.

task: mish_total
"""

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return F.mish(x).sum(dtype=torch.float64).div(x.numel()).float()
