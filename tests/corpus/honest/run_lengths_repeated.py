"""Uses repeat_interleave and pads the end.

task: run_lengths
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length

    def forward(self, rows, counts):
        found = torch.repeat_interleave(rows, counts, 0)[: self.length]
        y = torch.zeros(self.length, rows.shape[1], device=rows.device)
        y[: found.shape[0]] = found
        return y
