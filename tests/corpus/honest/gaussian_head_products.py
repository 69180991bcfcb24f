"""The square is expanded into matrix products with double-precision sums.

task: gaussian_head
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(width))
        self.log_var = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        s = self.log_var.clamp(-5, 2).double()
        z = x.double() - self.mean
        return (0.5 * (s.sum() + z.square() @ torch.exp(-s))).to(x.dtype)
