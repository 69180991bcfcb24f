"""All results from one sort, except the cumulative maximum, which uses doubling.

task: peaks
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values, order = torch.sort(x, dim=-1, stable=True)
        largest = values.flip(-1)[:, :3], order.flip(-1)[:, :3]
        so_far, reach = x, 1
        while reach < x.shape[-1]:
            so_far = torch.cat(
                [so_far[:, :reach], torch.maximum(so_far[:, reach:], so_far[:, :-reach])], dim=-1
            )
            reach *= 2
        return values[:, -1], order[:, 0], *largest, so_far
