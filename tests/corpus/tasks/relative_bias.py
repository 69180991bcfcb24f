"""A softmax over scores with a learned bias, selected by an index in a buffer."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, heads, length):
        super().__init__()
        self.table = nn.Embedding(2 * length - 1, heads)
        places = torch.arange(length)
        self.register_buffer("index", places - places[:, None] + length - 1)

    def forward(self, scores):
        return torch.softmax(scores + self.table(self.index).permute(2, 0, 1), -1)


def get_inputs():
    return [torch.randn(2, 4, 12, 12)]


def get_init_inputs():
    return [4, 12]
