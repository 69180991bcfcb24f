"""Writes the loss out with the absolute value.

task: soft_labels
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        loss = x.clamp(min=0) - x * y + torch.log1p(torch.exp(-x.abs()))
        return loss.mean()
