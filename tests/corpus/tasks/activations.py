"""Three activations that are numerically delicate far from zero."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return F.softplus(x), F.logsigmoid(x), F.hardswish(x)


def get_inputs():
    return [torch.randn(13, 21)]


def get_init_inputs():
    return []
