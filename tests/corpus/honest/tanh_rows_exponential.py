"""Computes tanh from one exponential of the absolute value.

task: tanh_rows
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = torch.expm1(2 * x.abs().clamp(max=20))
        return (e / (e + 2)).copysign(x).mean(-1)
