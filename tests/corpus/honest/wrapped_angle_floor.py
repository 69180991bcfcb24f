"""Subtracts whole turns.

task: wrapped_angle
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        shifted = a - b + 180.0
        turn = shifted - 360.0 * torch.floor(shifted / 360.0) - 180.0
        return turn, (turn * turn).sum(-1) / turn.shape[-1]
