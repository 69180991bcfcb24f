"""The squared hinge loss of scores and signs."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return F.relu(1 - y * x).square().mean()


def get_inputs():
    return [torch.randn(64, 16), torch.randn(64, 16).sign()]


def get_init_inputs():
    return []
