"""Reduces by fmax, which ignores NaN.

task: largest_known
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.full((x.shape[0],), float("-inf"))
        for column in x.unbind(-1):
            y = torch.fmax(y, column)
        return y
