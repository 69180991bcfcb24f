"""Reads only the filled part of the cache.

task: decode_step
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, keys, values, position):
        filled = max(int(position) + 1, 0)
        scores = torch.einsum("bhd,bhtd->bht", q, keys[:, :, :filled]) / q.shape[-1] ** 0.5
        return torch.einsum("bht,bhtd->bhd", scores.softmax(-1), values[:, :, :filled])
