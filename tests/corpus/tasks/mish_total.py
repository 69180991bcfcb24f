"""The mean of mish over all elements."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return F.mish(x).mean()


def get_inputs():
    return [torch.randn(40, 50)]


def get_init_inputs():
    return []
