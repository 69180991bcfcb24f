"""Blocks of four keys, merged with their maxima and sums.

task: attention
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        scale, length = q.shape[-1] ** -0.5, q.shape[-2]
        places = torch.arange(length)
        top = q.new_full((*q.shape[:-1], 1), float("-inf"))
        total, result = torch.zeros_like(top), torch.zeros_like(q)
        for start in range(0, length, 4):
            block = slice(start, start + 4)
            scores = q @ k[..., block, :].transpose(-1, -2) * scale
            hidden = places[:, None] < places[None, block]
            scores = scores.masked_fill(hidden, -1e30)
            larger = torch.maximum(top, scores.amax(-1, keepdim=True))
            weights = torch.exp(scores - larger).masked_fill(hidden, 0)
            old = torch.exp(top - larger)
            total = total * old + weights.sum(-1, keepdim=True)
            result = result * old + weights @ v[..., block, :]
            top = larger
        return result / total
