"""Copies the caches, then attends over the filled part, row by row.

task: cache_step
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v, keys, values, lengths):
        keys, values = keys.clone(), values.clone()
        found = torch.empty_like(q)
        for row, length in enumerate(lengths.tolist()):
            keys[row, length], values[row, length] = k[row], v[row]
            scores = keys[row, : length + 1] @ q[row] * q.shape[-1] ** -0.5
            found[row] = scores.softmax(-1) @ values[row, : length + 1]
        return found, keys, values
