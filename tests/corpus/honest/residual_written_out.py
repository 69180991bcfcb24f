"""tanh by torch, the remaining operations as one fused call.

task: residual
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return torch.addcmul(x, self.gain, torch.tanh(x @ self.inner.weight.t() + self.inner.bias))
