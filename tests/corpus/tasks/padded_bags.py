"""Means over rows of a table, without the rows of a padding index."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.bag = nn.EmbeddingBag(n, d, mode="mean", padding_idx=1)
        self.pos = nn.Embedding(64, d)

    def forward(self, ids):
        return self.bag(ids) + self.pos(ids % 64).sum(1)


def get_inputs():
    return [torch.randint(0, 200, (24, 13))]


def get_init_inputs():
    return [200, 18]
