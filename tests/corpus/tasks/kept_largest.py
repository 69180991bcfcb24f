"""A softmax over the largest elements of each row, with their values and indices."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        v, i = torch.topk(x, self.k, dim=-1)
        out = torch.full_like(x, float("-inf")).scatter(-1, i, v)
        return torch.softmax(out, -1), v, i


def get_inputs():
    return [torch.randn(21, 93)]


def get_init_inputs():
    return [7]
