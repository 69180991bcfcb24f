"""Rows of a table, selected by a hash of 64-bit identifiers, which may be negative."""

import torch
from torch import nn

BUCKETS = 61


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.rows = nn.Embedding(BUCKETS, width)

    def forward(self, ids):
        mixed = (ids >> 7) ^ (ids * 2654435761)
        return self.rows(mixed % BUCKETS)


def get_inputs():
    return [torch.randint(-(2**40), 2**40, (20, 12))]


def get_init_inputs():
    return [8]
