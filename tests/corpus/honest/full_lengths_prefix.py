"""Cuts each sequence to its length before the sum.

task: full_lengths
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, lengths):
        rows = []
        for sample, steps in zip(x, lengths.tolist(), strict=True):
            mean = sample[: max(steps, 0)].sum(0) / max(steps, 1)
            rows.append(torch.cat([mean, sample[max(steps - 1, 0)]]))
        return torch.stack(rows)
