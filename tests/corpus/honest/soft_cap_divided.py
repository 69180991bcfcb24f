"""Multiplies by the inverse of the cap.

task: soft_cap
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.cap = nn.Parameter(torch.tensor(30.0))

    def forward(self, x):
        inverse = self.cap.reciprocal()
        return torch.tanh(x * inverse) * self.cap
