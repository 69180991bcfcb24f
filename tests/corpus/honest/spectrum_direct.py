"""The convolution by its definition, and the transform as a double-precision matrix product.

task: spectrum
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, length):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(channels, length))

    def forward(self, x):
        n = x.shape[-1]
        y = F.conv1d(F.pad(x, (n - 1, 0)), self.kernel.flip(-1)[:, None], groups=x.shape[1])
        t = torch.arange(n, dtype=torch.float64)
        waves = torch.exp(-2j * math.pi * torch.outer(t, t[: n // 2 + 1]) / n)
        z = (x.to(torch.complex128) @ waves).to(torch.complex64)
        return y, z * z.roll(1, -1).conj(), torch.sqrt(z.real.square() + z.imag.square())
