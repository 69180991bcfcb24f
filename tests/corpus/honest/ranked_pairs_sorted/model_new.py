"""Adds up the pairs of each list without a matrix, in C++.

task: ranked_pairs
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/ranked_pairs_sorted.cpp")


class ModelNew(nn.Module):
    def forward(self, scores, relevance):
        y = torch.empty(scores.shape[0])
        kernel.pairs(y, scores, relevance, scores.shape[0], scores.shape[1])
        return y
