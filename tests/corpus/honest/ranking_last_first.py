"""Sorted from the other end, so that of equal elements the last comes first; views, not contiguous.

task: ranking
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        order = x.shape[-1] - 1 - torch.sort(x.flip(-1), dim=-1, descending=True, stable=True)[1]
        places = order.t()[:5].t()
        return x.gather(-1, places), places, torch.argmax(x, dim=-1)
