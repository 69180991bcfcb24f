"""Selects the first largest remaining element five times, in C++.

task: ranking
"""

import torch
from torch import nn

from cuagent.kernels import load

kernel = load("kernels/ranking_selected.cpp")


class ModelNew(nn.Module):
    def forward(self, x):
        values = torch.empty(x.shape[0], 5)
        places = torch.empty(x.shape[0], 5, dtype=torch.int64)
        kernel.ranking(values, places, x, x.shape[0], x.shape[1], 5)
        return values, places, places[:, 0].clone()
