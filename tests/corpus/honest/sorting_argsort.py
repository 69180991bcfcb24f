"""Sorts indices first, then gathers the values.

task: sorting
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        places = torch.argsort(x, dim=-1, stable=True)
        return x.gather(-1, places), places
