"""A product of the count of each row with the table.

task: embedding
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, index):
        counts = torch.nn.functional.one_hot(index, self.table.num_embeddings).sum(1)
        return counts.float() @ self.table.weight / index.shape[1]
