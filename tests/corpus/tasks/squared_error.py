"""The mean squared error of two matrices."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return F.mse_loss(a, b)


def get_inputs():
    return [torch.randn(37, 91), torch.randn(37, 91)]


def get_init_inputs():
    return []
