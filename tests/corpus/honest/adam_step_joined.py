"""Divides by the corrections once, as numbers.

task: adam_step
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, p, g, m, v, step):
        n = int(step)
        one, two = 1 - 0.9**n, 1 - 0.99**n
        m = torch.lerp(m, g, 0.1)
        v = v + 0.01 * (g * g - v)
        return p - 0.1 * (m / one) / ((v / two).sqrt() + 1e-8), m, v
