"""Its input, and the same with unit length."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = self.drop(x)
        return x, F.normalize(x, dim=-1)


def get_inputs():
    return [torch.randn(10, 24)]


def get_init_inputs():
    return []
