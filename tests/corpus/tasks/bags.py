"""Means over bags of rows of a table, with a padding index."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(30, 16, mode="mean", padding_idx=3)

    def forward(self, bags):
        return self.table(bags)


def get_inputs():
    return [torch.randint(0, 30, (20, 6))]


def get_init_inputs():
    return []
