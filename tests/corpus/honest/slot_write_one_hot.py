"""Selects the rows by comparing each place with the slots.

task: slot_write
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, cache, rows, slots):
        place = torch.arange(cache.shape[0])
        hit = place[:, None] == slots
        return torch.where(hit.any(-1, keepdim=True), rows[hit.int().argmax(-1)], cache) * 2
