"""Gathers and normalises both rows in one pass, in C++.

task: token_positions
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/token_positions_fused.cpp")


class ModelNew(nn.Module):
    def __init__(self, words, length, width):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids, positions):
        samples, length = ids.shape
        words, places = self.words.weight, self.places.weight
        y = torch.empty(samples, length, words.shape[1])
        kernel.embed(
            y,
            ids.contiguous(),
            positions.contiguous(),
            words,
            places,
            self.norm.weight,
            self.norm.bias,
            self.norm.eps,
            samples,
            length,
            words.shape[1],
        )
        return y
