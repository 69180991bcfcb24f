"""Selects with a sum of two masked terms.

task: masks
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, y):
        mask = torch.gt(x, y)
        chosen = x.masked_fill(~mask, 0) + (y + y).masked_fill(mask, 0)
        return mask, chosen, torch.count_nonzero(mask, dim=-1)
