"""Gathers the tokens along the sequence.

task: last_token
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(12, 5)

    def forward(self, x, lengths):
        at = (lengths - 1)[:, None, None].expand(-1, 1, x.shape[2])
        return self.head(x.gather(1, at)[:, 0])
