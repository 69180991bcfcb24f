"""Selects rows with flat indices; the normalisation is written out.

task: token_positions
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, words, length, width):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids, positions):
        word = self.words.weight.index_select(0, ids.flatten())
        place = self.places.weight.index_select(0, positions.flatten())
        x = word + place
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.norm.eps)
        return (centred * scale * self.norm.weight + self.norm.bias).view(*ids.shape, -1)
