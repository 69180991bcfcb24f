"""Uses the error function.

task: gelu_energy
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = 0.5 * x * (1 + torch.erf(x / 2**0.5))
        return (y * y).mean()
