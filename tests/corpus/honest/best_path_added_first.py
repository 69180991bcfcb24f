"""Adds the next score before it takes the maximum.

task: best_path
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        v = x[:, 0]
        back = []
        for t in range(1, x.shape[1]):
            scores = v[:, :, None] + (self.steps + x[:, t][:, None])
            v, at = scores.max(1)
            back.append(at)
        last = v.argmax(-1)
        path = [last]
        for at in reversed(back):
            last = at.gather(1, last[:, None])[:, 0]
            path.append(last)
        return torch.stack(path[::-1], 1)
