"""Joins the two parts of the ring.

task: circular
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, ring, start):
        n = int(start) % ring.shape[0]
        return torch.cat([ring[n:], ring[:n]]).cumsum(0)
