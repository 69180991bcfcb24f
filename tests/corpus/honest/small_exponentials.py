"""tanh from one exponential of the absolute value, with expm1 for small values.

task: small
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        e = torch.expm1(-2 * x.abs())
        return torch.copysign(-e / (e + 2), x) * 1e-4
