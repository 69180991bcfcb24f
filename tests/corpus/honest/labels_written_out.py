"""Written out with two logarithms, bounded below by -100.

task: labels
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, labels):
        p = 1 / (1 + torch.exp(-x))
        one, zero = p.log().clamp(min=-100), torch.log1p(-p).clamp(min=-100)
        return -(labels * one + (1 - labels) * zero).sum() / x.numel()
