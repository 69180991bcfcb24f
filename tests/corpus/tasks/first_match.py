"""The first row of a table that equals a query in all places, or the count of rows."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, queries, table):
        equal = (queries[:, None] == table).all(-1)
        found = equal.to(torch.int32).argmax(-1)
        return torch.where(equal.any(-1), found, torch.full_like(found, table.shape[0]))


def get_inputs():
    table = torch.randint(0, 3, (30, 4))
    return [table[torch.randperm(30)[:12]], table]


def get_init_inputs():
    return []
