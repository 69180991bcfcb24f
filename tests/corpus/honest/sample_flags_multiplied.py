"""Multiplies by the normal distribution function or by one.

task: sample_flags
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, flags):
        share = torch.where(flags[:, None], 0.5 * (1 + torch.erf(x * 0.7071067811865476)), 1.0)
        return x * share
